"""The changes between two numbers, from their build directories and a real git server."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import UsageError
from builder.base.events import ignore
from builder.commands import diff, listing
from builder.definitions import image
from builder.definitions.image import ImageDefinition
from builder.definitions.mod import Mod
from builder.definitions.source_patches import SourcePatch
from builder.lab import report
from builder.lock.model import (
    Adoption,
    BasePin,
    GitPin,
    ImageName,
    LockedPackage,
    Pins,
    PythonPin,
    WheelPin,
)
from builder.numbers import adopted
from builder.plan.making import ImageInputs, make_plan
from builder.plan.plan_model import Plan
from builder.sources.mirror import CommitFilter
from tests import program, shipped_files
from tests.commands import kept
from tests.commands.kept import Kept
from tests.conftest import command
from tests.plan.shipped import DIFF, SHA256
from tests.sources.git_server import Vllm, served_vllm
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.slow

DATE = "2026-11-19T10:00:00Z"
REPOSITORY = "vllm-node-tf5"


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    with served_vllm(tmp_path_factory.mktemp("upstream")) as served:
        yield served


@pytest.fixture
def numbers(tmp_path: Path) -> Kept:
    return kept.start(tmp_path)


def definition(**changes: Any) -> ImageDefinition:
    found = image.load_image(shipped_files.project(), "tf5", "linux/arm64")
    return replace(found, **changes)


def packages(**versions: str) -> PythonPin:
    locked = tuple(LockedPackage(name.replace("_", "-"), at, ("1" * 64,)) for name, at in sorted(versions.items()))
    return PythonPin(("as asked",), DATE, locked)


def pins(vllm: GitPin | WheelPin, python: PythonPin | None = None, base: str = "b") -> Pins:
    flashinfer = GitPin("https://example.org/flashinfer.git", "v0.6.7", "f" * 40, "0.6.7", DATE)
    return Pins(
        base=BasePin("nvidia/cuda:13.0.2-devel-ubuntu24.04", f"sha256:{base * 64}"),
        sources={"flashinfer": flashinfer, "vllm": vllm},
        python=python or packages(torch="2.11.0", uv="0.13.8"),
        build=packages(cmake="4.2"),
    )


def plan(wanted: Pins, *mods: Mod, **changes: Any) -> Plan:
    return make_plan(ImageInputs(definition(**changes), wanted, {SHA256: DIFF}, mods))


def wheel(version: str, commit: str | None = None) -> WheelPin:
    return WheelPin("vllm", version, commit)


def baked(name: str, **files: str) -> Mod:
    return kept.baked(name, {path.replace("_", "."): text for path, text in files.items()})


def between(numbers: Kept, wanted: CommitFilter | None = None) -> diff.ImageDifference:
    return diff.diff_images(
        numbers.project, f"{REPOSITORY}:1", f"{REPOSITORY}:2", wanted or CommitFilter(), lambda _: None
    )


def said(numbers: Kept, *arguments: str, code: int = 0) -> str:
    argv = command(numbers.project, "diff", *arguments)
    done = program.run(argv)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def test_upstream_commits_between_two_pins_are_counted_and_named(numbers: Kept, vllm: Vllm) -> None:
    old = GitPin(vllm.url, "main", vllm.history.v0_19_1, "0.19.1", DATE)
    new = GitPin(vllm.url, "main", vllm.history.main, "0.19.2.dev6", DATE)
    numbers.add(plan(pins(old)))
    numbers.add(plan(pins(new)))
    (moved,) = between(numbers).sources
    assert moved.change.name == "vllm"
    assert moved.gained is not None
    assert (moved.gained.total, moved.gained.matching, moved.lost) == (6, 6, None)
    assert moved.gained.commits[0].title == "inc.py changes again"

    lines = said(numbers, "tf5:1", f"{REPOSITORY}:2", code=2)
    assert "images.lock has no image `tf5:1`" in lines
    lines = said(numbers, f"{REPOSITORY}:1", REPOSITORY, "--grep", "bugfix")
    assert f"vllm  0.19.1 ({old.commit[:12]}) → 0.19.2.dev6 ({new.commit[:12]})" in lines
    assert "  6 upstream commits added, 1 of them shown" in lines
    assert "[Bugfix] ?[31mred?[0m" in lines
    assert "inc.py changes again" not in lines
    by_path = json.loads(said(numbers, f"{REPOSITORY}:1", REPOSITORY, "--path", "vllm/file1.py", "--json"))
    assert [commit["title"] for commit in by_path["sources"][0]["gained"]["commits"]] == [
        "[Model] Unterstützung für Qwen 模型 🚀"
    ]


def test_the_way_back_tells_what_went(numbers: Kept, vllm: Vllm) -> None:
    numbers.add(plan(pins(GitPin(vllm.url, "main", vllm.history.main, "0.19.2.dev6", DATE))))
    numbers.add(plan(pins(GitPin(vllm.url, "main", vllm.history.v0_19_1, "0.19.1", DATE))))
    (moved,) = between(numbers).sources
    assert moved.gained is not None
    assert moved.lost is not None
    assert (moved.gained.total, moved.lost.total) == (0, 6)
    lines = said(numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2")
    assert "  6 upstream commits removed" in lines
    assert "added" not in lines


@pytest.mark.parametrize("path", ["/etc", "..", "../x", "vllm/../../x", ""])
def test_a_path_outside_the_sources_is_a_mistake(numbers: Kept, path: str) -> None:
    assert "is not a path within the sources" in said(numbers, "a", "b", "--path", path, code=2)


def test_a_repository_that_does_not_answer_does_not_hide_the_rest(numbers: Kept, tmp_path: Path) -> None:
    for commit in ("a", "b"):
        pin = GitPin(f"file://{tmp_path}/nowhere.git", "main", commit * 40, "0.19", DATE)
        numbers.add(plan(pins(pin, packages(torch=f"2.{ord(commit)}", uv="0.13.8"))))
    difference = between(numbers)
    assert "nowhere.git" in difference.sources[0].unknown_reason
    assert [change.name for change in difference.changes.packages] == ["torch"]


def test_wheels_tell_only_their_versions(numbers: Kept) -> None:
    numbers.add(plan(pins(wheel("0.19.1", "0123456"))))
    numbers.add(plan(pins(wheel("0.19.2", "789abcd"))))
    (moved,) = between(numbers).sources
    assert moved.unknown_reason == "it was not taken from git, so only versions are known"
    lines = said(numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2")
    assert "vllm  0.19.1 (0123456) → 0.19.2 (789abcd)\n  it was not taken from git" in lines


def test_a_wheel_against_git_tells_why_there_is_no_list(numbers: Kept) -> None:
    numbers.add(plan(pins(wheel("0.19.1"))))
    numbers.add(plan(pins(GitPin("https://example.org/vllm.git", "main", "a" * 40, "0.19.2", DATE))))
    assert (
        between(numbers).sources[0].unknown_reason
        == "a wheel does not name its whole commit, so only versions are known"
    )


def test_pull_requests_come_go_and_are_frozen_anew(numbers: Kept, vllm: Vllm) -> None:
    pulls = [SourcePatch("7", "c" * 40, SHA256), SourcePatch("8", "c" * 40, SHA256)]
    old = GitPin(vllm.url, "main", vllm.history.main, "0.19.2", DATE, tuple(pulls))
    other = {"9" * 64: b"another diff\n", SHA256: DIFF}
    new = replace(old, patches=(SourcePatch("8", "d" * 40, "9" * 64), SourcePatch("9", "c" * 40, SHA256)))
    numbers.add(plan(pins(old)))
    numbers.add(make_plan(ImageInputs(definition(), pins(new), other, ())))
    difference = between(numbers)
    assert not difference.sources
    assert [(c.patch.split()[-1], c.kind) for c in difference.changes.patches] == [
        ("7", "removed"),
        ("8", "changed"),
        ("9", "added"),
    ]
    assert "\nsource patches\n  vllm pull request 7  removed\n  vllm pull request 8  changed" in said(
        numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2"
    )


def test_mods_are_compared_file_by_file(numbers: Kept) -> None:
    old = [baked("template", run_sh="true\n", chat_jinja="one\ntwo\n", gone_txt="x\n"), baked("old", run_sh="true\n")]
    new = [baked("template", run_sh="true\n", chat_jinja="one\n2\x1b[2J\n", logo_png="\0"), baked("new", run_sh="x\n")]
    numbers.add(plan(pins(wheel("1")), *old))
    numbers.add(plan(pins(wheel("1")), *new))
    changed = {change.name: change for change in between(numbers).mods}
    assert {name: change.kind for name, change in changed.items()} == {
        "template": "changed",
        "new": "added",
        "old": "removed",
    }
    chat, gone, logo = changed["template"].files
    assert chat.lines == ("@@ -1,2 +1,2 @@", " one", "-two", "+2\x1b[2J")
    assert (gone.path, gone.kind, gone.note) == ("gone.txt", "removed", "2 bytes")
    assert (logo.path, logo.kind, logo.note) == ("logo.png", "added", "1 bytes")
    lines = said(numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2").splitlines()
    assert lines[lines.index("mod template changed") :][:5] == [
        "mod template changed",
        "  chat.jinja: changed",
        "    @@ -1,2 +1,2 @@",
        "     one",
        "    -two",
    ]
    assert "    +2\\x1b[2J" in lines
    assert "mod new added" in lines
    assert "mod old removed" in lines


def test_packages_that_went_down_stand_first(numbers: Kept) -> None:
    old = packages(torch="2.11.0", transformers="5.9.0", went="1", uv="0.13.8", odd="2026b")
    new = packages(torch="2.10.1", transformers="5.10.0", came="1", uv="0.13.8", odd="2026c")
    new = replace(new, packages=tuple(p if p.name != "uv" else replace(p, hashes=("9" * 64,)) for p in new.packages))
    numbers.add(plan(pins(wheel("1"), old)))
    numbers.add(plan(pins(wheel("1"), new)))
    assert [(change.name, change.kind) for change in between(numbers).changes.packages] == [
        ("torch", "down"),
        ("odd", "up"),
        ("transformers", "up"),
        ("came", "in"),
        ("went", "out"),
        ("uv", "other files"),
    ]
    lines = said(numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2")
    assert "Python packages: 1 down, 2 up, 1 new, 1 gone, 1 other files" in lines
    assert "  down         torch         2.11.0 → 2.10.1" in lines


def test_base_dockerfile_and_size_are_told_too(numbers: Kept) -> None:
    numbers.add(plan(pins(wheel("1"))))
    template = definition().template + "\nRUN echo more\n"
    numbers.add(plan(pins(wheel("1"), base="c"), template=template), size=19_400_000_000)
    difference = between(numbers)
    assert difference.changes.base is not None
    assert difference.changes.base.after == f"nvidia/cuda:13.0.2-devel-ubuntu24.04 sha256:{'c' * 64}"
    (dockerfile,) = difference.dockerfiles
    assert "+RUN echo more" in dockerfile.lines
    lines = said(numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2")
    assert "\nsize\n  19.0 GB → 19.4 GB (+400 MB)\n" in lines
    own, _, rest = lines.partition("\nDockerfile changed\n")
    assert all(len(line) <= 80 for line in (own + rest.partition("\n\nsize\n")[2]).splitlines())
    order = ["base", "Dockerfile changed", "size"]
    assert [line for line in lines.splitlines() if line in order] == order


def test_the_same_inputs_have_no_difference(numbers: Kept) -> None:
    numbers.add(plan(pins(wheel("1"))))
    numbers.add(plan(pins(wheel("1"))))
    assert between(numbers).nothing
    assert "both were built from the same inputs" in said(numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2")


def test_a_missing_build_directory_is_said_and_the_lock_still_tells(numbers: Kept, vllm: Vllm) -> None:
    first = numbers.add(
        plan(pins(GitPin(vllm.url, "main", vllm.history.v0_19_1, "0.19.1", DATE)), baked("a", run_sh="x"))
    )
    new = pins(GitPin(vllm.url, "main", vllm.history.main, "0.19.2.dev6", DATE))
    numbers.add(plan(new))
    numbers.write(numbers.lock.with_pins("tf5", "linux/arm64", new))
    shutil.rmtree(numbers.folder(first))
    difference = between(numbers)
    assert difference.unknown == (f"builds/{REPOSITORY}/1: the build directory of {REPOSITORY}:1 is missing",)
    assert difference.sources[0].gained is not None
    assert difference.sources[0].gained.total == 6
    assert [(change.name, change.kind, change.files) for change in difference.mods] == [("a", "removed", ())]
    assert (difference.changes.packages, difference.changes.base, difference.dockerfiles) == ((), None, ())


def test_what_is_long_is_cut_and_said_to_be(numbers: Kept) -> None:
    many = {f"p{number}": "1" for number in range(30)}
    text = "".join(f"{number}\n" for number in range(60))
    numbers.add(plan(pins(wheel("1"), packages(**many)), baked("long", run_sh=text)))
    numbers.add(plan(pins(wheel("1"), packages(**dict.fromkeys(many, "2"))), baked("long", run_sh="")))
    lines = said(numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2")
    assert "… and 10 more: --full lists them" in lines
    assert "… and 21 more lines: --full shows them" in lines
    full = said(numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2", "--full")
    assert "…" not in full
    assert "    -59" in full


def test_an_unknown_image_is_a_mistake(numbers: Kept) -> None:
    assert "Missing argument 'B'" in said(numbers, "a", code=2)
    with pytest.raises(UsageError, match="images.lock has no image"):
        between(numbers)


def adopted_twin(numbers: Kept, of: ImageName, found: dict[str, str], fingerprint: str = "f") -> ImageName:
    """The next number: an image of others, with these packages in it and what images.lock records of ``of``."""
    record = numbers.lock.images[of.repository]
    name = ImageName(of.repository, record.next)
    twin = replace(
        record.numbers[of.number],
        definition="",
        input_hash="",
        mods={},
        adopted=Adoption("other/vllm:1"),
        fingerprint=f"sha256:{fingerprint * 64}",
    )
    numbers.write(numbers.lock.with_repository(of.repository, record.with_number(name.number, twin)))
    numbers.folder(name).mkdir(parents=True)
    contents = adopted.AdoptedContents(twin.fingerprint, packages=found)
    (numbers.folder(name) / adopted.FILE).write_bytes(adopted.dump(contents))
    return name


def test_an_adopted_image_that_is_the_same_does_not_differ(numbers: Kept) -> None:
    """The base brings pip and wheel, which the build does not know of."""
    first = numbers.add(plan(pins(wheel("1")), baked("a", run_sh="x")))
    adopted_twin(numbers, first, {"pip": "23.0", "wheel": "0.38", "torch": "2.11.0", "uv": "0.13.8", "vllm": "1"})
    assert between(numbers).nothing
    text = said(numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2")
    assert "both are the same image, byte for byte" in text
    assert "not compared" not in text


def test_an_adopted_image_is_compared_by_the_packages_that_the_build_knows(numbers: Kept) -> None:
    first = numbers.add(plan(pins(wheel("1"))))
    adopted_twin(numbers, first, {"pip": "23.0", "wheel": "0.38", "torch": "2.12.0", "vllm": "1"}, "d")
    difference = between(numbers)
    assert [(change.name, change.kind) for change in difference.changes.packages] == [("torch", "up"), ("uv", "out")]
    assert any("only the packages that its build installed are known" in reason for reason in difference.unknown)


def test_show_and_the_page_count_the_same_packages(numbers: Kept) -> None:
    first = numbers.add(plan(pins(wheel("1"))))
    twin = adopted_twin(numbers, first, {"pip": "23.0", "torch": "2.11.0", "uv": "0.13.8", "vllm": "1"})
    counted = {
        page.image: page.packages
        for page in report.collect_page(numbers.project, {}, ignore, listing.present_evidence).images
    }
    assert counted == {str(first): 2, str(twin): 4}
    for name in (first, twin):
        contents = listing.show_image(workspace(numbers.project, NO_ENGINE), str(name)).packages
        assert len(contents) == counted[str(name)]
