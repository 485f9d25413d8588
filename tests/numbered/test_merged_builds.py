"""Links in build directories that somebody committed: what they lead to is never read into the project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lock.model import ImageName
from builder.numbered import merged_builds
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
    assert merged_builds.restore_both(numbers.project, numbers.lock.with_image(to, kept.image(plan)), name, to)
    copied = numbers.folder(to)
    assert (copied / "plan.json").is_file()
    assert all((copied / link).is_symlink() for link in ("notes", "folder"))
