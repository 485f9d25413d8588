"""The cache of files read from wheels to try patches on (``.builder/wheels``)."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.lock.model import Lock
    from builder.project import Project

_LARGEST = 16 << 20
_WHEEL = re.compile("[0-9a-f]{64}")


def stale(project: Project, lock: Lock) -> tuple[Path, ...]:
    """The folders of wheels that are pinned nowhere in ``lock``, and the answers of indexes that name only such wheels.
    An index gives all of it again. Other files in the cache are not among them."""
    cache = project.state / "wheels"
    pinned = {
        digest
        for platforms in lock.pins.values()
        for pins in platforms.values()
        for closure in (pins.python, pins.build)
        for package in (closure.packages if closure else ())
        for digest in package.hashes
    }
    folders = (path for path in cache.glob("*") if _WHEEL.fullmatch(path.name) and path.name not in pinned)
    answers = (path for path in cache.glob("found/*.json") if not pinned & _named(path))
    return tuple(sorted(path for path in (*folders, *answers) if not path.is_symlink()))


def remove(paths: Iterable[Path]) -> None:
    """Removes files and folders of the cache, without an error where another process removes or writes them, too."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _named(answer: Path) -> set[str]:
    """The SHA-256 of each wheel in an index's answer."""
    try:
        return {str(sha256) for _, sha256 in json.loads(regular_file.read(answer, _LARGEST))}
    except (OSError, ValueError, TypeError, RecursionError):
        return set()
