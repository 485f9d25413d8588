"""Wheels that only say which packages there are already, for the resolver.

A base image of others has packages that no index has: built there, or patched since. As wheels without anything in them
they take part in the resolution as they are, and ask for nothing.
"""

from __future__ import annotations

import re
import zipfile
from json import dumps as quoted  # a JSON string of ASCII is a TOML string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.lock.pins import LockedPackage


def resolvable(packages: Iterable[LockedPackage]) -> tuple[LockedPackage, ...]:
    """Those of ``packages`` whose versions a resolver can compare; distributions give some others."""
    from packaging.version import InvalidVersion, Version

    def is_version(text: str) -> bool:
        try:
            Version(text)
        except InvalidVersion:
            return False
        return True

    return tuple(package for package in packages if is_version(package.version))


def write(folder: Path, packages: Iterable[LockedPackage]) -> None:
    """Writes a wheel for each package into a new ``folder``."""
    folder.mkdir()
    for package in packages:
        stem = f"{re.sub('[-_.]+', '_', package.name)}-{package.version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{stem}.dist-info/METADATA", _metadata(package))
            archive.writestr(
                f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{stem}.dist-info/RECORD", "")


def project_lines(packages: Iterable[LockedPackage]) -> list[str]:
    """The lines of a pyproject.toml by which uv takes these versions to need nothing, wherever it finds them."""
    lines = []
    for package in packages:
        lines += ["[[tool.uv.dependency-metadata]]", f"name = {quoted(package.name)}"]
        lines += [f"version = {quoted(package.version)}", "requires-dist = []"]
    return lines


def _metadata(package: LockedPackage) -> str:
    return f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
