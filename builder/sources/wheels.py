"""Local wheels that a build needs: found by name and hash, and linked into a folder that becomes a build context."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.lock.pins import PythonPin
    from builder.plan.python import PackageGroup
    from builder.sources.environment import Settings


def stage(folder: Path, pin: PythonPin, groups: tuple[PackageGroup, ...], settings: Settings) -> bool:
    """Puts the person's wheels that ``pin`` names into ``folder``, one subfolder a group; tells whether there are any.

    Only a file with a pinned hash is taken: a wheel of the right name with other content stays where it is.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    pinned = {(package.name, package.version): package.hashes for package in pin.packages}
    group_of = {name: group.name for group in groups for name in group.packages}
    staged = False
    for wheel in settings.local_wheels():
        try:
            name, version, _, _ = parse_wheel_filename(wheel.name)
        except InvalidWheelFilename:
            continue
        hashes = pinned.get((name, str(version)), ())
        if name in group_of and hashes and _sha256(wheel) in hashes:
            target = folder / group_of[name] / wheel.name
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
