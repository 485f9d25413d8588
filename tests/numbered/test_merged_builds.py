"""Build directories after a merge: no link that somebody committed is followed, and nothing unfinished stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lock.model import ImageName
from builder.numbers import recovery
from tests import projects
from tests.commands import kept
from tests.plan.test_make import cpu_plan

if TYPE_CHECKING:
    from pathlib import Path


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
    left = [folder.with_name(".2.new"), folder.with_name(".2.old"), numbers.project.state / "renumber"]
    for unfinished in left:
        projects.write(unfinished / "mods/ours/run.sh", "x")
    kept_files = sorted(folder.rglob("*"))
    recovery.remove_unfinished(numbers.project)
    assert not any(unfinished.exists() for unfinished in left)
    assert sorted(folder.rglob("*")) == kept_files
