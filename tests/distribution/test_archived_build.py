"""Build directories in archives of others: what would be obeyed later is not taken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.lock import text
from builder.lock.model import Adoption, BasePin, ImageName, Lock, Pins
from builder.moving import archive
from builder.plan import making
from builder.plan.plan_model import StagedFile
from tests import locks
from tests.commands import kept
from tests.distribution import plain_build
from tests.plan import shipped

if TYPE_CHECKING:
    from collections.abc import Mapping


NAME = ImageName("small", 2)
FILE = StagedFile(b"x\n")


def fault(files: Mapping[str, StagedFile]) -> str:
    return archive.build_fault(NAME, locks.numbered(), files)


@pytest.mark.parametrize("name", ["cpu", "dflash", "flashqla"])
def test_what_this_program_writes_is_taken(name: str) -> None:
    plan = shipped.plan(name, "wheel" if name == "cpu" else "git", "linux/arm64")
    assert archive.build_fault(NAME, kept.image(plan), plan.files) == ""


@pytest.mark.parametrize(("definition", "platform"), [("tf5", "linux/arm64"), ("small", "linux/s390x")])
def test_no_pins_of_other_definitions_are_taken_up(definition: str, platform: str) -> None:
    """An archive of one image pinned the base of another definition, and the next build of that took it."""
    plan = shipped.plan("cpu", "wheel", "linux/arm64")
    pins = Pins(BasePin("debian:bookworm-slim", f"sha256:{'0' * 64}"))
    own, other = (
        Lock().with_image(NAME, kept.image(plan)).with_pins(name, on, pins)
        for name, on in (("cpu", kept.image(plan).platform), (definition, platform))
    )
    for record, expected in ((own, ""), (other, "its images.lock is of other images")):
        files = {**plan.files, "images.lock": StagedFile(text.dump_lock(record).encode())}
        assert archive.build_fault(NAME, kept.image(plan), files) == expected


def test_a_directory_that_was_lost_is_none() -> None:
    assert fault({}) == ""
    adopted = replace(locks.numbered(), adopted=Adoption("a:1", ()))
    assert archive.build_fault(NAME, adopted, {"adopted.json": FILE, "images.lock": FILE}) == ""
    assert "`Dockerfile` belongs to no build" in archive.build_fault(NAME, adopted, {"Dockerfile": FILE})


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (".git/config", "a folder whose name begins with a dot"),
        (".git", "git takes it for its own"),
        (".GIT/config", "a folder whose name begins with a dot"),
        ("git~1/config", "git takes it for its own"),
        (".g\u200cit/config", "a folder whose name begins with a dot"),
        ("mods/a/.git", "git takes it for its own"),
        ("mods/a/.git/hooks/post-checkout", "a folder whose name begins with a dot"),
        ("mods/a/.gitmodules", "git takes it for its own"),
        ("mods/a/.hg/hgrc", "a folder whose name begins with a dot"),
        ("mods/a/.vscode/tasks.json", "a folder whose name begins with a dot"),
        ("mods/a/b/.fetched/x", "a folder whose name begins with a dot"),
        ("mods/a/\x1b[2Jx", "a control character"),
        (".dockerignore", "belongs to no build"),
        (".envrc", "belongs to no build"),
        ("Makefile", "belongs to no build"),
        ("docker-bake.override.hcl", "belongs to no build"),
        ("Dockerfile.dockerignore", "belongs to no build"),
        ("mods/b/run.sh", "belongs to no build"),
        ("dflash/Dockerfile", "belongs to no build"),
        ("python/packages.txt/x", "belongs to no build"),
    ],
)
def test_a_file_that_no_build_has_is_refused(path: str, why: str) -> None:
    message = fault({**plain_build.FILES, path: FILE})
    assert why in message
    assert message.isprintable()


def test_files_of_mods_are_taken() -> None:
    paths = ("mods/a/.gitignore", f"mods/a/.fetched/{'0' * 64}/x.whl", "mods/a/sub/.pylintrc", "mods/a/config")
    assert fault({**plain_build.FILES, **dict.fromkeys(paths, FILE)}) == ""


def test_a_bare_repository_is_refused() -> None:
    paths = dict.fromkeys(("mods/a/x/HEAD", "mods/a/x/config", "mods/a/x/objects/0", "mods/a/x/refs/0"), FILE)
    assert "`mods/a/x`: git takes this folder for a repository" in fault({**plain_build.FILES, **paths})


def test_only_the_files_of_mods_are_executable() -> None:
    assert "`Dockerfile` is executable" in fault({**plain_build.FILES, "Dockerfile": StagedFile(b"", executable=True)})


@pytest.mark.parametrize(
    "changes",
    [
        {"contexts": {"host": "/etc"}},
        {"contexts": {"a-source": "/etc"}},
        {"contexts": {"a-source": f"https://example.org/a.git#{'0' * 40}"}},
        {"secret": ["id=x,src=/etc/shadow"]},
        {"secret": [{"id": "x", "env": "HF_TOKEN"}]},
        {"secrets": ["id=x,env=HF_TOKEN"]},
        {"ssh": ["default"]},
        {"cache-to": ["type=local,dest=/tmp/planted"]},
        {"cache-from": ["type=local,src=/root"]},
        {"output": ["type=local,dest=/tmp/planted"]},
        {"entitlements": ["security.insecure"]},
        {"network": "host"},
        {"context": "/"},
        {"context": "../../.."},
        {"context": "mods"},
        {"dockerfile": "/etc/passwd"},
        {"dockerfile-inline": "FROM scratch"},
        {"inherits": ["other"]},
        {"matrix": {"x": ["1"]}},
        {"tags": ["registry.example.org/x"]},
        {"call": "outline"},
        {"args": {"SOURCE_DATE_EPOCH": "0", "HTTP_PROXY": "http://evil"}},
        {"args": {"SOURCE_DATE_EPOCH": 0}},
        {"args": {}},
        {"attest": []},
        {"platforms": ["linux/riscv64"]},
        {"platforms": "linux/amd64"},
        {"labels": {"run": "x"}},
        {"labels": {"builder.x": ["x"]}},
        {"variable": {"HF_TOKEN": {"default": ""}}},
    ],
)
def test_what_no_bake_file_of_ours_says_is_refused(changes: Mapping[str, Any]) -> None:
    assert fault(plain_build.with_bake_file(**changes)).startswith("`bake.json`: ")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x00\xff", b'{"target": {}, "target": {}}', b"[" * 100_000])
@pytest.mark.parametrize("file", ["bake.json", "plan.json"])
def test_what_is_damaged_is_refused(file: str, content: bytes) -> None:
    assert file in fault({**plain_build.FILES, file: StagedFile(content)})
    assert file in fault({path: kept_file for path, kept_file in plain_build.FILES.items() if path != file})


def test_a_record_of_another_number_is_refused() -> None:
    lock = Lock().with_image(NAME, locks.numbered())
    record = StagedFile(text.dump_lock(lock).encode())
    assert fault({**plain_build.FILES, "images.lock": record}) == ""
    more = StagedFile(text.dump_lock(lock.with_image(ImageName("other", 1), locks.numbered())).encode())
    assert fault({**plain_build.FILES, "images.lock": more}) == "its images.lock is of other images"


@pytest.mark.parametrize("text", ["${homedir()}", "%{ if true }x%{ endif }", "a ${HF_TOKEN} b"])
def test_an_expression_is_refused(text: str) -> None:
    assert "it holds an expression" in fault(plain_build.with_bake_file(labels={"builder.x": text}))
    assert fault(plain_build.with_bake_file(labels={"builder.x": making.dump_bake({"x": text})})) == ""
