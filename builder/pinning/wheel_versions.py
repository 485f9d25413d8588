"""The version of a source that is taken as a wheel: what the definition writes, or what was chosen for the pin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.definitions.image import WheelSource
from builder.errors import SourceError, UsageError
from builder.lock.pins import WheelPin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ImageDefinition, Source
    from builder.lock.pins import Pins, SourcePin
    from builder.pinning.resolver import Resolver
    from builder.sources.wheels.wheel_lookup import WheelRequest

_SHOWN = 5


def version(source: Source | None, pin: SourcePin | None) -> str:
    """The version of a source that is taken as a wheel: the pinned one where the definition writes none, or writes
    another than was chosen; else the written one. Empty for another source, and for the newest."""
    if not isinstance(source, WheelSource):
        return ""
    written = source.requirement.partition("==")[2]
    pinned = pin.version if isinstance(pin, WheelPin) and pin.requested == source.requested else ""
    return pinned if pinned and not (written and _is(pinned, written)) else written


def requirement(source: WheelSource, pin: SourcePin | None, chosen: str | None) -> str:
    """The requirement that uv resolves: for the ``chosen`` version, or that which was chosen for the ``pin`` before;
    else what the definition writes."""
    written = source.requirement.partition("==")[2]
    wanted = chosen or (version(source, pin) if written else "")
    return f"{source.package}=={wanted}" if wanted and wanted != written else source.requirement


def with_chosen(definition: ImageDefinition, pins: Pins, update: Mapping[str, str | None]) -> Pins:
    """``pins`` with the wheels of ``update`` at the version that each maps to; without those that map to none, which
    the definition decides again."""
    chosen = {
        name: WheelPin(definition.wheel_sources[name].requested, wanted)
        for name, wanted in update.items()
        if wanted and name in definition.wheel_sources
    }
    gone = {name for name in update if name in definition.wheel_sources}
    return replace(pins, sources={**{n: pin for n, pin in pins.sources.items() if n not in gone}, **chosen})


def require_version(definition: ImageDefinition, name: str, text: str) -> None:
    """Raises UsageError where ``text`` is no version that a wheel can have."""
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        raise UsageError(
            f"`--update {name}={text}`: {name} of {definition.name} is a wheel, and `{text}` is no version",
            hint=f"write a version, such as {name}=1.2.3; `--update {name}` takes what image.yaml says",
        ) from None


def require_wheel(definition: ImageDefinition, name: str, wanted: str, resolver: Resolver) -> None:
    """Raises SourceError where the index has no wheel of the version that was chosen, with the newest that it has."""
    from builder.sources.wheels import wheel_lookup

    source = definition.wheel_sources[name]
    try:
        wheel_lookup.find(resolver.project.state / "wheels", lookup(definition, source, wanted), resolver.settings)
    except SourceError as error:
        raise _missing(definition, source, name, wanted, resolver) or error from None


def lookup(definition: ImageDefinition, source: WheelSource, wanted: str) -> WheelRequest:
    """The request for the wheel of one version of a source, on the index that the definition names for it. Raises
    ValueError for a definition without Python packages, which has no wheel either."""
    from builder.sources.wheels.wheel_lookup import WheelRequest

    wants = definition.python
    if wants is None:
        raise ValueError("a wheel is installed with the Python packages")
    indexes = tuple(index for index in wants.indexes if source.package in index.packages)
    return WheelRequest(f"{source.package}=={wanted}", replace(wants, indexes=indexes), definition.platform)


def _missing(
    definition: ImageDefinition, source: WheelSource, name: str, wanted: str, resolver: Resolver
) -> SourceError | None:
    """The error for a version that the user's index lacks; None where it has it, does not answer, or is not the one
    that the definition takes the wheel from."""
    from builder.sources import released_versions

    if lookup(definition, source, wanted).python.indexes:
        return None
    try:
        there = released_versions.newest(source.package, resolver.settings)
    except SourceError:
        return None
    if not there or any(_is(each, wanted) for each in there):
        return None
    newest = ", ".join(there[:_SHOWN])
    return SourceError(
        f"the package index has no wheel of {source.package} {wanted}",
        hint=f"`--update {name}=VERSION` with one that it has, such as {newest}",
    )


def _is(pinned: str, written: str) -> bool:
    """True if a version is the written one: a local part that was not written makes no other."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(f"=={written}").contains(pinned, prereleases=True)
    except InvalidSpecifier:
        return pinned == written
