"""Packages and sources that new pins take back to an older version, and why: an index that is behind the pins, a limit
of time, or the requirements of other packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.lock.pins import GitPin
from builder.sources import released_versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.definitions.image import ImageDefinition
    from builder.lock.pins import LockedPackage, Pins
    from builder.sources.environment import UserSettings


@dataclass(frozen=True)
class OlderVersion:
    """A package or a source whose new pin is of an older version; ``why`` is empty where the reason is not known."""

    name: str
    before: str
    after: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} goes back from {self.before} to {self.after}" + (f": {self.why}" if self.why else "")


def between(
    definition: ImageDefinition, before: Pins, after: Pins, update: Mapping[str, str | None], settings: UserSettings
) -> tuple[OlderVersion, ...]:
    """The versions that go back from the pins ``before`` to those ``after``, by name. A source for which ``update``
    names a version is left out: that version was requested."""
    requested = {source.package for name, source in definition.wheel_sources.items() if update.get(name)}
    from_base = _going_back(
        before.base.packages if before.base else (), after.base.packages if after.base else (), requested
    )
    older = {name: OlderVersion(name, old, new, "the base image has it") for name, old, new in from_base}
    elsewhere = {name for index in (definition.python.indexes if definition.python else ()) for name in index.packages}
    for closure, other in ((before.build, after.build), (before.python, after.python)):
        if closure is None or other is None:
            continue
        limit = other.as_of if other.as_of and not "" < closure.as_of <= other.as_of else ""
        for name, old, new in _going_back(closure.packages, other.packages, requested):
            why = "" if name in elsewhere else _reason(name, old, limit, settings)
            older[name] = OlderVersion(name, old, new, why)
    for name, pin in after.sources.items():
        old_pin = before.sources.get(name)
        if not isinstance(pin, GitPin) or not isinstance(old_pin, GitPin) or update.get(name):
            continue
        if pin.git == old_pin.git and pin.date < old_pin.date:
            older[name] = OlderVersion(name, old_pin.version, pin.version, "its commit is older")
    return tuple(older[name] for name in sorted(older))


def _going_back(
    before: tuple[LockedPackage, ...], after: tuple[LockedPackage, ...], requested: set[str]
) -> Iterator[tuple[str, str, str]]:
    from packaging.version import InvalidVersion, Version

    versions = {package.name: package.version for package in before}
    for package in after:
        old = versions.get(package.name)
        if old is None or package.name in requested:
            continue
        try:
            if Version(package.version) < Version(old):
                yield package.name, old, package.version
        except InvalidVersion:
            continue


def _reason(name: str, old: str, limit: str, settings: UserSettings) -> str:
    from packaging.version import Version

    try:
        offered = released_versions.newest(name, settings)
    except SourceError:
        return ""
    if offered and Version(old) > max(map(Version, offered)):
        return f"the package index offers nothing newer than {offered[0]}"
    if limit:
        return f"nothing newer than {limit[:10]} is taken"
    return "the requirements of other packages exclude the newer version"
