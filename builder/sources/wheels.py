"""Local wheels that a build needs: found by hash, and linked into a folder that becomes a build context."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.sources.environment import Settings


def stage(folder: Path, wanted: Mapping[str, frozenset[str]], settings: Settings) -> bool:
    """Puts the person's wheels with the SHA-256 hashes in ``wanted`` into ``folder``, one subfolder a group; tells
    whether there are any. A wheel of the right name with other content stays where it is."""
    staged = False
    if not any(wanted.values()):
        return staged
    for wheel in settings.local_wheels():
        digest = _sha256(wheel)
        for group, hashes in wanted.items():
            if digest in hashes:
                target = folder / group / wheel.name
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(wheel, target)
                staged = True
    return staged


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another filesystem, or one without hard links
        shutil.copyfile(source, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
