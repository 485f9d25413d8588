"""Giving a whole result its name, by one rename: a folder, or a snapshot of the cache with links to its blobs."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from builder.storage import atomic_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.checkpoints.record import RecordedFile
    from builder.checkpoints.result_place import ResultPlace


def put_in_place(work: Path, place: ResultPlace, revision: str, files: Mapping[str, RecordedFile]) -> None:
    """Gives the result its name by one rename; what is there already stays."""
    if place.is_cache:
        links = _link(work, place, files)
        _rename(links, place.folder(revision))
        atomic_file.make_folder(place.root / "refs")
        atomic_file.write(place.root / "refs" / "main", revision.encode())
        shutil.rmtree(work, ignore_errors=True)
    else:
        for extra in work.iterdir():
            if extra.name not in files:
                extra.unlink()
        _rename(work, place.folder(revision))


def blobs(place: ResultPlace, file: RecordedFile) -> tuple[Path, ...]:
    """The path of a file of a result in the cache; none in a plain folder."""
    digest = (file.digest or "").removeprefix("sha256:")
    return (place.root / "blobs" / digest,) if place.is_cache and digest else ()


def _link(work: Path, place: ResultPlace, files: Mapping[str, RecordedFile]) -> Path:
    """Moves the files to the cache's blobs; returns a folder with links to them, as a snapshot has them."""
    of_all, links = place.root / "blobs", work / ".snapshot"
    for folder in (of_all, place.root / "snapshots"):
        atomic_file.make_folder(folder)
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    for name, file in files.items():
        (blob,) = blobs(place, file)
        if (work / name).exists():
            (work / name).replace(blob)
        (links / name).symlink_to(f"../../blobs/{blob.name}")
    atomic_file.sync_folder(of_all)
    atomic_file.sync_folder(links)
    return links


def _rename(fresh: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(fresh, ignore_errors=True)
        return
    fresh.rename(target)
    with suppress(OSError):
        atomic_file.sync_folder(target.parent)
