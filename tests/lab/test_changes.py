"""Edits in a build directory, and the known contents of an image."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.lab import changes
from builder.lab.changes import ComparedImage, contents_of
from builder.lock.model import GitPin, ImageName, Lock, Pins, Version
from builder.numbers import build_directory
from builder.plan.making import ImageInputs, make_plan
from builder.plan.plan_model import Plan, StagedFile
from tests import locks, projects
from tests.commands import kept
from tests.commands.kept import Kept
from tests.plan import shipped
from tests.plan.test_making import cpu_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def numbers(tmp_path: Path) -> Kept:
    return kept.start(tmp_path)


def edits(numbers: Kept, name: ImageName) -> list[str]:
    image = numbers.lock.image(name)
    assert image is not None
    return list(changes.build_directory_edits(build_directory.read_build_directory(numbers.project, name), image))


@pytest.mark.parametrize("platform", shipped.PLATFORMS)
@pytest.mark.parametrize(("name", "mode"), shipped.MODES)
def test_what_nobody_touched_is_as_it_was_built(numbers: Kept, name: str, mode: str, platform: str) -> None:
    assert edits(numbers, numbers.add(shipped.plan(name, mode, platform))) == []


def test_mods_with_folders_and_scripts_are_as_they_were_built(numbers: Kept) -> None:
    plan = with_files(["run.sh", "a/b.py", "a-b", "a.b", "Z"])
    assert edits(numbers, numbers.add(plan)) == []


def with_files(paths: list[str]) -> Plan:
    """The cpu plan with a mod of these files, read from disk as mods are."""
    plan = cpu_plan()
    many = kept.baked("many", dict.fromkeys(paths, "x\n"))
    return make_plan(ImageInputs(plan.definition, plan.pins, {}, (many,)))


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n# edited\n")


def change_json(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        document = json.loads(path.read_text(encoding="utf-8"))
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")

    return apply


def bump_numpy(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("transformers==1.0", "transformers==1.1"), encoding="utf-8")


def other_hash(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace("2222", "3333"), encoding="utf-8")


def make_executable(path: Path) -> None:
    path.chmod(0o755)


def image_target(bake_file: Any) -> Any:
    return bake_file["target"]["image"]


CASES: list[tuple[str, Callable[[Path], None], list[str]]] = [
    ("Dockerfile", append, ["Dockerfile was edited"]),
    ("Dockerfile", os.remove, ["Dockerfile: the file is missing"]),
    ("patches/vllm-40898.patch", append, ["patches/vllm-40898.patch was edited"]),
    ("patches/vllm-40898.patch", os.remove, ["patches/vllm-40898.patch no longer exists"]),
    ("python/packages.txt", bump_numpy, ["python/ was edited: transformers"]),
    ("python/packages.txt", other_hash, ["python/ was edited: transformers"]),
    ("python/packages.txt", append, ["python/packages.txt was edited: line 4 is not a line that builder writes"]),
    ("python/build.txt", bump_numpy, ["python/build.txt was edited: transformers"]),
    ("python/build.txt", os.remove, ["python/build.txt was edited: for-dflash, torch, transformers"]),
    (
        "build-metadata.yaml",
        append,
        ["build-metadata.yaml was edited", "bake.json: `args` of target image"],
    ),
    (
        "plan.json",
        change_json(lambda document: document["steps"][0]["takes"].update(image="other:1")),
        ["plan.json does not have the input hash that images.lock records"],
    ),
    (
        "bake.json",
        change_json(
            lambda document: image_target(document)["contexts"].update({"vllm-source": "https://x.org/v#" + "b" * 40})
        ),
        ["bake.json: `contexts` of target image"],
    ),
    (
        "bake.json",
        change_json(lambda document: image_target(document)["contexts"].pop("vllm-source")),
        ["bake.json: `contexts` of target image"],
    ),
    (
        "bake.json",
        change_json(lambda document: image_target(document)["contexts"].update(more="https://example.org")),
        ["bake.json: `contexts` of target image"],
    ),
    (
        "bake.json",
        change_json(lambda document: image_target(document).update(platforms=["linux/riscv64"], dockerfile="Other")),
        ["bake.json: `dockerfile` of target image", "bake.json: `platforms` of target image"],
    ),
]


@pytest.mark.parametrize(("file", "edit", "lines"), CASES)
def test_each_edit_is_named(numbers: Kept, file: str, edit: Callable[[Path], None], lines: list[str]) -> None:
    name = numbers.add(shipped.plan_with_pull("dflash", "linux/arm64", 40898))
    edit(numbers.folder(name) / file)
    assert edits(numbers, name) == lines


@pytest.mark.slow
def test_an_edit_in_an_image_below_is_named_by_its_folder(numbers: Kept) -> None:
    name = numbers.add(shipped.plan("flashqla", "git", "linux/arm64"))
    folder = numbers.folder(name)
    append(folder / "dflash/Dockerfile")
    change_json(lambda document: image_target(document)["contexts"].pop("dflash"))(folder / "bake.json")
    assert edits(numbers, name) == ["dflash/Dockerfile was edited", "bake.json: `contexts` of target image"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: append(folder / "a/b.py"),
        lambda folder: make_executable(folder / "a-b"),
        lambda folder: (folder / "new").write_text("x\n"),
        lambda folder: (folder / "Z").unlink(),
        lambda folder: (folder / "Z").rename(folder / "Y"),
    ],
)
def test_a_mod_counts_as_a_whole(numbers: Kept, edit: Callable[[Path], None]) -> None:
    name = numbers.add(with_files(["run.sh", "a/b.py", "a-b", "Z"]))
    edit(numbers.folder(name) / "mods/many")
    assert edits(numbers, name) == ["mods/many was edited"]


def test_what_git_does_not_keep_apart_is_no_edit(numbers: Kept) -> None:
    name = numbers.add(with_files(["run.sh", "a/b.py"]))
    for path in build_directory.build_directory_files(numbers.folder(name)):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (0, 0))
    assert edits(numbers, name) == []


def test_git_keeps_a_build_directory_byte_for_byte(numbers: Kept, tmp_path_factory: pytest.TempPathFactory) -> None:
    mod = kept.baked("windows", {"run.sh": "true\r\n", "notes.txt": "one\r\ntwo\n"})
    plan = cpu_plan()
    name = numbers.add(make_plan(ImageInputs(plan.definition, plan.pins, {}, (mod,))))
    shutil.copy(projects.REPOSITORY_ROOT / ".gitattributes", numbers.project.root)
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    for argv in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message=built"]):
        subprocess.run(["git", *argv], cwd=numbers.project.root, check=True, capture_output=True)
    clone = tmp_path_factory.mktemp("clone")
    subprocess.run(["git", "clone", "--quiet", numbers.project.root, clone], check=True, capture_output=True)
    assert edits(Kept(Project(clone), numbers.lock), name) == []


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("plan.json", "{", "plan.json:1:1: cannot be read: not JSON: Expecting"),
        ("plan.json", "[]", "plan.json:1:1: cannot be read: expected a block of keys, found a list"),
        ("plan.json", '{"steps": [{"name": "mod ../../..", "takes": {}}]}', "`mod ../../..` is not a valid step name"),
        ("plan.json", '{"steps": [{"name": "/etc: base", "takes": {}}]}', "`/etc: base` is not a valid step name"),
        ("plan.json", "[" * 100_000, "plan.json:1:1: cannot be read"),
        ("bake.json", '{"target": []}', "bake.json:1:1: cannot be read: builder did not write this file"),
        ("bake.json", '{"target": {"image": {"contexts": 1}}}', "bake.json:1:1: cannot be read"),
    ],
)
def test_a_damaged_directory_is_refused_with_its_file(numbers: Kept, file: str, text: str, message: str) -> None:
    name = numbers.add(cpu_plan())
    (numbers.folder(name) / file).write_text(text)
    with pytest.raises(FileProblemsError) as raised:
        build_directory.read_build_directory(numbers.project, name)
    assert message in raised.value.message
    assert raised.value.message.startswith(f"builds/{name.repository}/1/{file}")


def test_a_directory_that_is_gone_is_said(numbers: Kept) -> None:
    with pytest.raises(FileProblemsError, match="the build directory of tf5:9 is missing"):
        build_directory.read_build_directory(numbers.project, ImageName("tf5", 9))


def test_files_of_two_sides_by_what_differs() -> None:
    before = {
        "gone": StagedFile(b"1\n"),
        "mode": StagedFile(b"x"),
        "same": StagedFile(b"x"),
        "text": StagedFile(b"a\nb\n"),
    }
    after = {
        "mode": StagedFile(b"x", executable=True),
        "new": StagedFile(b"1,"),
        "same": StagedFile(b"x"),
        "text": StagedFile(b"a\nc\n"),
    }
    listed = [(change.path, change.kind, change.note or change.lines[1:]) for change in changes.of_files(before, after)]
    assert listed == [
        ("gone", "removed", "2 bytes"),
        ("mode", "changed", "is executable now"),
        ("new", "added", "2 bytes"),
        ("text", "changed", (" a", "-b", "+c")),
    ]
    assert [change.note for change in changes.of_files(after, before)][1] == "is no longer executable"


def test_a_file_that_cannot_be_read_counts_as_missing(tmp_path: Path) -> None:
    projects.write(tmp_path / "a/file", "text\n")
    (tmp_path / "a/link").symlink_to("file")
    assert changes.read_files(tmp_path, ["a/file", "a/link", "a/none"]) == {"a/file": StagedFile(b"text\n")}
    assert changes.read_files(tmp_path) == {"a/file": StagedFile(b"text\n")}


# What is known of an image when it is compared.

PIN = GitPin("https://host/vllm.git", "main", "0123456789abcdef" * 2 + "01234567", "0.32.0", "2026-11-20T22:00:00Z")


def test_a_commit_is_whole_where_the_pins_have_it() -> None:
    """A number has 12 digits of a commit: without its build directory, it is not taken for another one."""
    lock = Lock().with_pins("small", "linux/amd64", Pins(sources={"vllm": PIN}))
    for commit, whole in [(PIN.commit[:12], PIN.commit), ("f" * 12, "f" * 12), (None, None)]:
        image = replace(locks.numbered(), versions={"vllm": Version("0.32.0", commit)})
        contents = contents_of(lock, ComparedImage(ImageName("small", 1), image, None, None, {}))
        assert contents.sources == {"vllm": Version("0.32.0", whole)}
