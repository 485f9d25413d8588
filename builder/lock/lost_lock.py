"""A lost images.lock: one that is missing though images were built here, which is not the same as an empty one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import LockError
from builder.lock import journal
from builder.lock.file_problems import TAKE_BACK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.project import Project

# A build directory has one of them: of an image that was built here, or of an adopted one.
_OF_IMAGES = ("bake.json", "adopted.json")
MESSAGE = "lost, while builds/ has images"


def is_lost(project: Project) -> bool:
    """True if there is no images.lock, though ``builds/`` has images. The very first number does not count while it is
    being given, nor where that was interrupted: the next writer finishes or undoes it."""
    if project.lock.exists():
        return False
    # In this order: another process creates the directory first and removes its journal entry last.
    built = [path.parent for file in _OF_IMAGES for path in project.builds.glob(f"**/[0-9]*/{file}")]
    begun = set(_begun(project))
    return any(begun.isdisjoint((path, *path.parents)) for path in built) and not project.lock.exists()


def refuse(project: Project) -> None:
    """Raises LockError where images.lock is lost."""
    if is_lost(project):
        raise LockError(f"images.lock is {MESSAGE}", hint=TAKE_BACK)


def _begun(project: Project) -> Iterator[Path]:
    """The build directories of numbers that are being given."""
    for entry in journal.entries(project):
        if entry.engine_id:
            yield project.build_directory(entry.name.repository, entry.name.number)
