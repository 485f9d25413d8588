"""Local wheels that a build needs, found by hash and copied into a folder that becomes a build context."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

from builder.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.sources.environment import UserSettings


def stage(folder: Path, hashes_by_group: Mapping[str, frozenset[str]], settings: UserSettings) -> bool:
    """Copies the user's wheels with the SHA-256 hashes in ``hashes_by_group`` into ``folder``, one subfolder for each
    group; returns True if there are any. A wheel of the right name with other content is not copied. Raises SourceError
    if one cannot be copied."""
    staged = False
    if not any(hashes_by_group.values()):
        return staged
    for wheel in settings.local_wheels():
        digest = _sha256(wheel)
        for group, hashes in hashes_by_group.items():
            if digest in hashes:
                _copy(wheel, folder / group / wheel.name)
                staged = True
    return staged


def _copy(wheel: Path, target: Path) -> None:
    """Copies a wheel. A hard link would cost nothing, but it changes the wheel's ctime, from which uv concludes that
    the wheel is another one, and unpacks it again at the next resolution (torch: 5 s, and 700 MB more in its cache,
    each time)."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(wheel, target)
    except OSError as error:
        raise SourceError(f"{wheel} cannot be copied to {target.parent}: {error.strerror}") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
