"""Build directories after a merge: no link that somebody committed is followed, and nothing unfinished stays."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import LockError
from builder.base.project import Project
from builder.lock import layout, lock_file, text
from builder.lock.model import BasePin, ImageName, Lock, LockedPackage, Pairing, Pins, PythonPin
from builder.numbers import recovery
from builder.plan import making
from tests import locks, projects
from tests.commands import kept
from tests.plan import shipped
from tests.plan.test_making import cpu_plan

if TYPE_CHECKING:
    from pathlib import Path

    from builder.plan.making import ImageLabels
    from builder.plan.plan_model import Plan


def test_a_renumbered_build_directory_brings_no_file_of_the_machine(tmp_path: Path) -> None:
    numbers = kept.start(tmp_path / "project")
    plan = cpu_plan()
    name = numbers.add(plan)
    to = ImageName(name.repository, 2)
    projects.write(tmp_path / "private/key", "the key")
    (numbers.folder(name) / "notes").symlink_to(tmp_path / "private/key")
    (numbers.folder(name) / "folder").symlink_to(tmp_path / "private")
    assert recovery.restore_both(numbers.project, numbers.lock.with_image(to, kept.image(plan)), name, to)
    copied = numbers.folder(to)
    assert (copied / "plan.json").is_file()
    assert all((copied / link).is_symlink() for link in ("notes", "folder"))


def test_what_a_killed_process_left_goes_and_no_number(tmp_path: Path) -> None:
    numbers = kept.start(tmp_path / "project")
    folder = numbers.folder(numbers.add(cpu_plan()))
    left = [folder.with_name(".2.new"), folder.with_name(".2.old"), numbers.project.state / "merge"]
    for unfinished in left:
        projects.write(unfinished / "mods/ours/run.sh", "x")
    kept_files = sorted(folder.rglob("*"))
    recovery.remove_unfinished(numbers.project)
    assert not any(unfinished.exists() for unfinished in left)
    assert sorted(folder.rglob("*")) == kept_files


# Labels that anybody may have put on an image, of which a lost images.lock is made anew.


def labels_of(plan: Plan, **changes: Any) -> ImageLabels | None:
    labels = {**plan.targets["image"]["labels"], **{f"builder.{key}": value for key, value in changes.items()}}
    return making.read_labels(labels)


@pytest.mark.parametrize(("name", "mode"), shipped.MODES)
def test_the_labels_of_a_build_are_read(name: str, mode: str) -> None:
    assert labels_of(shipped.plan(name, mode, "linux/arm64"))
    assert labels_of(cpu_plan())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("models", "[1]"),
        ("models", '[["Org/M"]]'),
        ("mods", '{"a": 1}'),
        ("mods", '{"a": ["sha256:0"]}'),
        ("sources", '{"vllm": [1, 2]}'),
        ("sources", '{"vllm": ["1", {}]}'),
        ("pins", "[]"),
        ("sources", "[" * 100_000),
    ],
)
def test_what_images_lock_could_not_hold_is_no_label_of_a_build(key: str, value: str) -> None:
    assert labels_of(cpu_plan(), **{key: value}) is None


@pytest.mark.parametrize(
    "pins",
    [
        '{"cpu": {"base": {"asked": 1, "resolved": []}}}',
        '{"cpu": {"base": {"asked": "a", "resolved": "b", "other": "c"}}}',
        '{"cpu": {"vllm": {"git": "x", "asked": "y", "pulls": [1]}}}',
        '{"cpu": {"base": "debian:bookworm-slim@sha256:1"}}',
        '{"cpu": []}',
    ],
)
def test_pins_that_images_lock_could_not_hold_are_not_taken_from_a_label(pins: str) -> None:
    labels = labels_of(cpu_plan(), pins=pins)
    assert labels
    assert labels.pins == {}


def test_a_directory_tells_of_its_own_number_alone(tmp_path: Path) -> None:
    project = Project(tmp_path)
    name = ImageName("small", 1)
    for folder, number in (("small/1", 1), ("small/1/mods/a/2", 2), ("large/2", 1)):
        lock = Lock().with_image(ImageName(folder.rpartition("/")[0], number), locks.numbered())
        projects.write(project.builds / folder / "images.lock", text.dump_lock(lock))
    projects.write(project.builds / "small/1/bake.json", json.dumps({}))
    (project.builds / "small/3").mkdir()
    (project.builds / "small/3/images.lock").symlink_to("../1/images.lock")
    assert [found for found, _ in recovery.in_builds(project)] == [name]


def test_a_directory_tells_of_no_model_on_another_image(tmp_path: Path) -> None:
    project = Project(tmp_path)
    one, two = ImageName("small", 1), ImageName("small", 2)
    lock = Lock().with_image(one, locks.numbered()).with_image(two, locks.numbered())
    lock = lock.with_pairing("Org/A", Pairing(one)).with_pairing("Org/B", Pairing(two))
    for folder in ("small/1", "small/3"):
        projects.write(project.builds / folder / "images.lock", text.dump_lock(lock))
    ((found, part),) = recovery.in_builds(project)
    assert (found, list(part.models)) == (one, ["Org/A"])


def test_a_damaged_record_is_left_out_and_the_others_are_read(tmp_path: Path) -> None:
    project = Project(tmp_path)
    record = text.dump_lock(Lock().with_image(ImageName("small", 2), locks.numbered()))
    projects.write(project.builds / "small/1/images.lock", "[")
    projects.write(project.builds / "small/2/images.lock", record)
    projects.write(project.builds / "small/02/images.lock", record)
    assert [found for found, _ in recovery.in_builds(project)] == [ImageName("small", 2)]


def test_the_record_of_an_image_that_moves_has_its_new_number(tmp_path: Path) -> None:
    numbers = kept.start(tmp_path / "project")
    mine = cpu_plan()
    name = numbers.add(mine)
    record = Lock().with_image(name, kept.image(mine)).with_pairing("Org/M", Pairing(name))
    projects.write(numbers.folder(name) / "images.lock", text.dump_lock(record))
    to = ImageName(name.repository, 7)
    projects.write(numbers.folder(to).with_name(".7.new") / "left", "by a killed process")
    lock = Lock().with_image(name, kept.image(cpu_plan("linux/arm64"))).with_image(to, kept.image(mine))
    assert recovery.restore_both(numbers.project, lock, name, to)
    assert recovery.is_of(numbers.folder(to), kept.image(mine))
    assert not (numbers.folder(to) / "left").exists()
    moved = lock_file.read_record(numbers.folder(to))
    assert (list(moved.images[name.repository].numbers), moved.models["Org/M"].pairing.image) == ([7], to)
    assert not (numbers.project.state / "merge").exists()
    with pytest.raises(ValueError, match="are both already in the lock"):
        recovery.restore_both(numbers.project, lock, name, ImageName(name.repository, 8))


def test_an_image_whose_build_directory_is_nowhere_is_said_to_have_none(tmp_path: Path) -> None:
    numbers = kept.start(tmp_path / "project")
    name = numbers.add(cpu_plan())
    to = ImageName(name.repository, 2)
    lock = numbers.lock.with_image(to, kept.image(cpu_plan("linux/arm64")))
    assert not recovery.restore_both(numbers.project, lock, name, to)
    assert not numbers.folder(to).exists()
    assert recovery.is_of(numbers.folder(name), kept.image(cpu_plan()))


# An unfinished merge: git's index has each side, with the packages that its images.lock has the digests of.


def git(folder: Path, *arguments: str, text: str = "") -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, input=text, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.slow
def test_each_side_of_a_merge_is_read_with_its_packages(tmp_path: Path) -> None:
    project = Project(tmp_path)
    git(tmp_path, "init", "--quiet")
    assert recovery.staged_locks(project) is None
    sides = [
        Lock().with_pins(
            "small", "linux/arm64", Pins(python=PythonPin(("torch",), "", (LockedPackage("torch", v, ()),)))
        )
        for v in ("2.11", "2.12", "2.13")
    ]
    for stage, lock in enumerate(sides, start=1):
        files = {"images.lock": text.dump_lock(lock)}
        files |= {file.path: file.content.decode() for file in layout.packages_files(lock)}
        for path, content in files.items():
            blob = git(tmp_path, "hash-object", "-w", "--stdin", text=content)
            git(tmp_path, "update-index", "--index-info", text=f"100644 {blob} {stage}\t{path}\n")
    assert recovery.staged_locks(project) == tuple(sides)
    blob = git(tmp_path, "hash-object", "-w", "--stdin", text="version: 3\n")
    git(tmp_path, "update-index", "--index-info", text=f"100644 {blob} 2\timages.lock\n")
    with pytest.raises(LockError, match=r"images\.lock \(stage 2 of git's index\):1:1: truncated") as caught:
        recovery.staged_locks(project)
    assert "`git checkout --theirs images.lock`" in caught.value.hint
    git(tmp_path, "update-index", "--index-info", text=f"0 {'0' * 40}\timages.lock\n")
    assert recovery.staged_locks(project) is None
    whole = git(tmp_path, "hash-object", "-w", "--stdin", text=text.dump_lock(Lock()))
    for stage, digest in ((1, blob), (2, whole)):
        git(tmp_path, "update-index", "--index-info", text=f"100644 {digest} {stage}\timages.lock\n")
    # A damaged common version and a side that has no images.lock count as empty.
    assert recovery.staged_locks(project) == (Lock(), Lock(), Lock())
    git(tmp_path, "update-index", "--index-info", text=f"100644 {blob} 3\timages.lock\n")
    with pytest.raises(LockError, match=r"images\.lock \(stage 3 of git's index\):1:1: truncated") as caught:
        recovery.staged_locks(project)
    assert "the side `theirs` is damaged: `git checkout --ours images.lock`" in caught.value.hint


@pytest.mark.slow
def test_packages_that_git_does_not_know_yet_are_those_of_the_folder(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    packages = (LockedPackage("torch", "2.13", ()),)
    closure = PythonPin(("torch",), "", packages)
    bases = [BasePin(name, f"sha256:{'1' * 64}") for name in ("debian:11", "debian:12", "debian:13")]
    sides = [Lock().with_pins("small", "linux/arm64", Pins(base, python=closure)) for base in bases]
    for stage, lock in enumerate(sides, start=1):
        locks.write_lock(tmp_path, lock)
        blob = git(tmp_path, "hash-object", "-w", "images.lock")
        git(tmp_path, "update-index", "--index-info", text=f"100644 {blob} {stage}\timages.lock\n")
    assert recovery.staged_locks(Project(tmp_path)) == tuple(sides)
