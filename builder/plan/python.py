"""The Python lock of a build, as requirement files for pip and uv.

Requirement files rather than pylock.toml: they have hashes and no addresses, so that the same lock works with every
index mirror and with local wheels.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.lock.pins import LockedPackage
from builder.plan.model import StagedFile

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.lock.pins import Pins

_ENTRY = re.compile(r"(?P<name>[^=\s]+)==(?P<version>\S+)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})*)\n")


@dataclass(frozen=True)
class PackageGroup:
    """The packages that are taken from one index; ``name`` is also the folder of the local wheels that replace it."""

    name: str
    file: str
    url: str
    packages: tuple[str, ...]


def groups(definition: ImageDefinition) -> tuple[PackageGroup, ...]:
    """A group for each index of the definition. The definition's name tells the groups of a chain apart."""
    indexes = definition.python.indexes if definition.python else ()
    return tuple(
        PackageGroup(f"{definition.name}-index-{n}", f"index-{n}.txt", index.url, index.packages)
        for n, index in enumerate(indexes, start=1)
    )


def files(pins: Pins, grouped: tuple[PackageGroup, ...]) -> dict[str, StagedFile]:
    """The requirement files in ``python/``: uv itself, one file a group, all others, and the build requirements."""
    file_of = {name: group.file for group in grouped for name in group.packages} | {"uv": "uv.txt"}
    lines: dict[str, list[str]] = {"uv.txt": [], "packages.txt": [], **{group.file: [] for group in grouped}}
    for package in pins.python.packages if pins.python else ():
        lines[file_of.get(package.name, "packages.txt")].append(line(package))
    if pins.build:
        # Packages with a file of their own are installed from it in the build stage, too.
        lines["build.txt"] = [line(package) for package in pins.build.packages if package.name not in file_of]
    return {f"python/{name}": StagedFile("".join(entry).encode()) for name, entry in lines.items()}


def read(text: str) -> tuple[LockedPackage, ...]:
    """Reads a requirement file that ``files`` made. Raises ValueError where it was edited by hand."""
    packages = []
    end = 0
    for match in _ENTRY.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        hashes = tuple(re.findall("[0-9a-f]{64}", match["hashes"]))
        packages.append(LockedPackage(match["name"], match["version"], hashes))
    if end != len(text):
        raise ValueError(f"line {text.count(chr(10), 0, end) + 1} is not one that this program writes")
    return tuple(packages)


def identity(package: LockedPackage) -> str:
    """The input of a step for a package: its version, for display, and a digest over all its files."""
    return f"{package.version} {hashlib.sha256(' '.join(package.hashes).encode()).hexdigest()[:12]}"


def line(package: LockedPackage) -> str:
    """The entry of a package in a requirement file."""
    hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in package.hashes)
    return f"{package.name}=={package.version}{hashes}\n"
