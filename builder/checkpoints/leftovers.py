"""Results that nothing names any more, and what killed builds left: what `prune` removes of checkpoints."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.checkpoints import checkpoints_lock, making, result_place
from builder.checkpoints.result_place import UNFINISHED
from builder.definitions import checkpoint
from builder.storage import file_lock

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from builder.checkpoints.result_place import ResultPlace
    from builder.project import Project


@dataclass(frozen=True)
class RemovableCheckpoint:
    """A revision of a checkpoint, or an unfinished one (``revision`` is empty), with the paths that go and the bytes
    that they take, each file counted once."""

    name: str
    revision: str
    paths: tuple[Path, ...]
    size: int

    @property
    def title(self) -> str:
        """The revision for messages."""
        return f"{self.name}@{self.revision[:12]}" if self.revision else f"what an unfinished {self.name} left"


def find(project: Project, environ: Mapping[str, str], wanted: Collection[str]) -> tuple[RemovableCheckpoint, ...]:
    """The revisions on this machine that checkpoints.lock records, that were not made last, and that are none of
    ``wanted`` (``NAME@REVISION``); and what is unfinished. Files that a revision which stays has too are left."""
    records = checkpoints_lock.read(project)
    removable = []
    for name in sorted({*records.checkpoints, *checkpoint.names(project)}):
        revisions, current = records.checkpoints.get(name, {}), records.current(name)
        folders = dict.fromkeys((None, *(made.folder for made in revisions.values())))
        places = [result_place.of(project, environ, name, folder) for folder in folders]
        for place in places:
            here = [revision for revision in revisions if place.has(revision)]
            going = [each for each in here if each != current and f"{name}@{each}" not in wanted]
            # Another project's revisions lie in the same folder: whatever they link to stays.
            staying = [each for each in place.revisions() if each not in going]
            kept = {path.resolve() for each in staying for path in place.folder(each).iterdir()}
            for revision in going:
                paths = _paths(place, revision, kept)
                kept |= set(paths)
                removable.append(RemovableCheckpoint(name, revision, paths, sum(map(_size, paths))))
            unfinished = tuple(sorted(place.root.glob(f"{UNFINISHED}*")))
            if unfinished and not file_lock.is_held(place.root / making.LOCK):
                removable.append(RemovableCheckpoint(name, "", unfinished, sum(map(_size, unfinished))))
    return tuple(removable)


def remove(removable: RemovableCheckpoint) -> None:
    """Removes the paths; the folder first that has the name, so that nobody takes a part for the whole."""
    for path in removable.paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _paths(place: ResultPlace, revision: str, kept: Collection[Path]) -> tuple[Path, ...]:
    folder = place.folder(revision)
    blobs = sorted({path.resolve() for path in folder.iterdir()} - set(kept)) if place.is_cache else []
    return (folder, *(blob for blob in blobs if blob.parent == (place.root / "blobs").resolve()))


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(_size(each) for each in path.iterdir() if not each.is_symlink())
    with suppress(OSError):
        return path.lstat().st_size
    return 0
