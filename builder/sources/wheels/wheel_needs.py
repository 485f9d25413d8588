"""The packages that a wheel needs, by its own metadata, against those that an image has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.sources import python
from builder.sources.wheels import wheel_files
from builder.sources.wheels.wheel_lookup import Wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.definitions.image import PythonRequirements
    from builder.sources.wheels.commit_wheel import CommitWheel


def read(cache: Path, package: str, wheel: CommitWheel, ca_file: Path | None) -> tuple[str, ...]:
    """The requirements of a wheel (``Requires-Dist``), read in place. Raises SourceError where it cannot be read."""
    from email.parser import BytesHeaderParser

    file = f"{package.replace('-', '_')}-{wheel.version}.dist-info/METADATA"
    metadata = wheel_files.read(cache, Wheel(wheel.address, wheel.sha256), [file], ca_file).get(file, b"")
    return tuple(map(str, BytesHeaderParser().parsebytes(metadata).get_all("Requires-Dist", [])))


def conflict(needs: Iterable[str], installed: Mapping[str, str], wants: PythonRequirements, platform: str) -> str:
    """The first need of a wheel that an image with these packages (name to version) does not meet, in words; empty
    where there is none. A package that is not there at all was left out on purpose."""
    target = {
        "extra": "",
        "python_version": wants.version,
        "python_full_version": f"{wants.version}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": python.MACHINES[platform],
    }
    unmet = filter(None, (unmet_need(text, installed, target) for text in needs))
    return next((f"needs {needed}, and not {version}" for needed, version in unmet), "")


def unmet_need(text: str, installed: Mapping[str, str], target: Mapping[str, str]) -> tuple[str, str] | None:
    """A need (``Requires-Dist``) that applies to the machine ``target`` (markers, PEP 508) and that the package there
    does not meet: what is needed, and the version that is there. None where it is met, or cannot be read, or there is
    no such package. ``installed`` has names as indexes have them (PEP 503)."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    version = installed.get(canonicalize_name(requirement.name))
    applies = requirement.marker is None or requirement.marker.evaluate(dict(target))
    if not version or not applies or requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{requirement.name}{requirement.specifier}", version
