"""What numbered images compiled while they served: folders of this machine, one a number, which no other build may read
(`container.compile_cache`). They are of no use once the image is gone."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions.recipes.container import COMPILE_CACHES, compile_cache
from builder.engine import containers
from builder.errors import BuilderError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.lock.model import ImageName

_INSIDE = "/run/builder/compiled"
_REMOVING = 600.0  # seconds
_BLOCK = 512  # bytes: what st_blocks counts


@dataclass(frozen=True)
class CompileCache:
    """The folder of one number, and the bytes on disk of what serving put into it."""

    name: ImageName
    folder: Path
    size: int


def find(endpoint: Endpoint, environ: Mapping[str, str], names: Iterable[ImageName]) -> tuple[CompileCache, ...]:
    """The folders that there are of these numbers. None where the engine is another machine's: so are its folders."""
    if not endpoint.host.startswith("unix://"):
        return ()
    found = []
    for name in names:
        folder = Path(compile_cache(environ, name.repository, name.number))
        if _is_folder(folder):
            found.append(CompileCache(name, folder, sum(disk_usage(path) for path in _own(folder))))
    return tuple(found)


def remove(endpoint: Endpoint, one: CompileCache, image: str | None) -> str:
    """Removes what serving put into a folder, and the folder where nothing else is in it; what stayed and why, or
    nothing.

    A container writes as root. What this user may not remove is removed in a container of ``image``, where there is
    one, with no other folder mounted.
    """
    for path in _own(one.folder):
        shutil.rmtree(path, ignore_errors=True)
    if left := _own(one.folder):
        said = _as_root(endpoint, image, one.folder, left) if image else "it belongs to another user"
        if said:
            return f"{one.folder} stays: {said}; `sudo rm -r {one.folder}` removes it"
    try:
        one.folder.rmdir()
    except OSError as error:
        return f"{one.folder} stays: {error.strerror}"
    return ""


def disk_usage(path: Path) -> int:
    """The bytes on disk of ``path`` and all below it, each file once however many names it has. Links are not followed,
    and what may not be read counts as nothing."""
    below = (Path(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files))
    sizes: dict[tuple[int, int], int] = {}
    for file in (path, *below):
        with suppress(OSError):
            stat = file.lstat()
            sizes[stat.st_dev, stat.st_ino] = stat.st_blocks * _BLOCK
    return sum(sizes.values())


def _own(folder: Path) -> list[Path]:
    """The folders in it that serving made. One that somebody made a link is left alone: it leads to something else."""
    return [path for path in (folder / name for name in COMPILE_CACHES) if _is_folder(path)]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _as_root(endpoint: Endpoint, image: str, folder: Path, left: Iterable[Path]) -> str:
    argv = ["rm", "-rf", "--", *(f"{_INSIDE}/{path.name}" for path in left)]
    mounts = {str(folder): _INSIDE}
    try:
        with containers.running(endpoint, image, labels={"builder.prune": "compiled"}, mounts=mounts) as container:
            result = container.run(argv, timeout=_REMOVING)
    except BuilderError as error:
        return error.message
    return result.output.strip()
