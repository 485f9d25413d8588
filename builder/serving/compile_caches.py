"""Compile caches: folders on this machine with what a numbered image compiled while it served, one for each number, so
that no other build reads them (`container.compile_cache`). They are of no use once the image is gone."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from builder.definitions.recipes.container import COMPILE_CACHES, compile_cache
from builder.engine import containers
from builder.errors import BuilderError, UnsafePathError
from builder.project import below

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.lock.model import ImageName

_INSIDE = "/run/builder/compiled"
_REMOVING = 600.0  # seconds
_BLOCK = 512  # bytes: what st_blocks counts


@dataclass(frozen=True)
class CompileCache:
    """The folder of one number, below that of all of them (``root``), and the bytes on disk of what serving wrote into
    it."""

    name: ImageName
    root: Path
    folder: Path
    size: int


def find(endpoint: Endpoint, environ: Mapping[str, str], names: Iterable[ImageName]) -> tuple[CompileCache, ...]:
    """Returns the compile caches of these numbers that exist; none where the engine runs on another machine, as the
    folders are there, too."""
    if not endpoint.host.startswith("unix://"):
        return ()
    caches = []
    for name in names:
        folder = Path(compile_cache(environ, name.repository, name.number))
        if _is_folder(folder):
            root = folder.parents[len(PurePath(name.repository).parts)]
            caches.append(CompileCache(name, root, folder, sum(disk_usage(path) for path in _cache_folders(folder))))
    return tuple(caches)


def remove(endpoint: Endpoint, cache: CompileCache, image: str | None) -> str:
    """Removes what serving wrote into a folder, and the folder itself if nothing else is in it. Returns what could not
    be removed and why; empty if all is gone.

    A container writes as root. Files that this user may not remove are removed in a container of ``image``, if one is
    given, with no other folder mounted.
    """
    try:
        below(cache.root, cache.folder)
    except UnsafePathError as error:
        return error.message
    for path in _cache_folders(cache.folder):
        shutil.rmtree(path, ignore_errors=True)
    if remaining := _cache_folders(cache.folder):
        reason = _remove_as_root(endpoint, image, cache.folder, remaining) if image else "it belongs to another user"
        if reason:
            return f"{cache.folder} stays: {reason}; `sudo rm -r {cache.folder}` removes it"
    try:
        cache.folder.rmdir()
    except FileNotFoundError:
        return ""  # another prune was here, too
    except OSError as error:
        return f"{cache.folder} stays: {error.strerror}"
    return ""


def disk_usage(path: Path) -> int:
    """Returns the bytes on disk of ``path`` and everything below it. A file with several names counts once, links are
    not followed, and what may not be read counts as 0."""
    below = (Path(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files))
    sizes: dict[tuple[int, int], int] = {}
    for file in (path, *below):
        with suppress(OSError):
            stat = file.lstat()
            sizes[stat.st_dev, stat.st_ino] = stat.st_blocks * _BLOCK
    return sum(sizes.values())


def _cache_folders(folder: Path) -> list[Path]:
    """The folders in it that serving made. A link that the user put in place of one is left alone."""
    return [path for path in (folder / name for name in COMPILE_CACHES) if _is_folder(path)]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove_as_root(endpoint: Endpoint, image: str, folder: Path, remaining: Iterable[Path]) -> str:
    argv = ["rm", "-rf", "--", *(f"{_INSIDE}/{path.name}" for path in remaining)]
    mounts = {str(folder): _INSIDE}
    try:
        with containers.running(endpoint, image, labels={"builder.prune": "compiled"}, mounts=mounts) as container:
            result = container.run(argv, timeout=_REMOVING)
    except BuilderError as error:
        return error.message
    return result.output.strip()
