"""Files of a wheel: read in place, a few kilobytes of hundreds of megabytes, and cached by the wheel's hash."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from builder.sources.wheels import wheel_archive
from builder.storage import regular_file, state_file

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from builder.sources.wheels.wheel_lookup import Wheel

# A wheel may keep files for site-packages in a folder of its own: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
_LARGEST = 64 << 20  # bytes
_DATA_PREFIX = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")


def read(cache: Path, wheel: Wheel, paths: Collection[str], ca_file: Path | None) -> dict[str, bytes]:
    """Returns the contents of those of ``paths`` that the wheel installs into site-packages. Raises SourceError if it
    cannot be read.

    Files that were read once, and the list of all names, are in ``cache`` and take no network.
    """
    folder = cache / wheel.sha256
    listing = _cached(folder / "names")
    if listing is not None:
        names = frozenset(listing.decode().split("\n"))
        contents = {path: _cached(_file(folder, path)) for path in paths if path in names}
        files = {path: content for path, content in contents.items() if content is not None}
        if len(files) == len(contents):
            return files
    with wheel_archive.open_wheel(wheel.address, ca_file) as archive:
        members = {_DATA_PREFIX.sub("", name): name for name in archive.namelist()}
        files = {path: archive.read(members[path]) for path in paths if path in members}
    for path, content in files.items():
        state_file.write(_file(folder, path), content)
    state_file.write(folder / "names", "\n".join(members).encode())
    return files


def read_cached(cache: Path, sha256: str, paths: Collection[str]) -> dict[str, bytes]:
    """Returns the contents of those of ``paths`` that were read of this wheel before. Takes no network."""
    contents = {path: _cached(_file(cache / sha256, path)) for path in paths}
    return {path: content for path, content in contents.items() if content is not None}


def _file(folder: Path, path: str) -> Path:
    """Returns the path of a cached file, named after the hash of its path in the wheel, which may be any text."""
    return folder / hashlib.sha256(path.encode()).hexdigest()


def _cached(path: Path) -> bytes | None:
    try:
        return regular_file.read(path, _LARGEST)
    except OSError:
        return None
