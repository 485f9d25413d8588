"""An images.lock that is gone, though images were built here: what it said is not known, which is not nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import LockError
from builder.lock import journal
from builder.lock.file_problems import TAKE_BACK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.project import Project

SAID = "lost, while builds/ has images"


def is_lost(project: Project) -> bool:
    """Whether there is no images.lock, though ``builds/`` has images. The first number of all does not count while it
    is being given, nor where that was cut short: the next who writes finishes it or takes it back."""
    if project.lock.exists():
        return False
    # In this order: another process puts the directory there first and lets go of the journal last.
    built = [path.parent for path in project.builds.glob("**/[0-9]*/bake.json")]
    begun = set(_begun(project))
    return any(begun.isdisjoint((path, *path.parents)) for path in built) and not project.lock.exists()


def refuse(project: Project) -> None:
    """Raises LockError where images.lock is lost."""
    if is_lost(project):
        raise LockError(f"images.lock is {SAID}", hint=TAKE_BACK)


def _begun(project: Project) -> Iterator[Path]:
    """The build directories of numbers that are being given."""
    for entry in journal.entries(project):
        if entry.engine_id:
            yield project.build_directory(entry.name.repository, entry.name.number)
