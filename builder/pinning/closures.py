"""The Python closures of one definition: what its image installs, and what its sources from git are built with.

Both belong to the commits that they were resolved for: a source's own requirement files say what it needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.definitions.image import MAKES
from builder.errors import SourceError
from builder.lock.pins import LockedPackage, Pins, WheelPin
from builder.sources import python

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ImageDefinition, PythonRequirements
    from builder.pinning.resolver import Resolver

# Both are compiled against the torch that the image runs, and FlashInfer's wheels of kernels import the package itself.
_BUILT_AGAINST = ("torch",)


def to_run(
    definition: ImageDefinition,
    wants: PythonRequirements,
    pins: Pins,
    held: tuple[LockedPackage, ...],
    resolver: Resolver,
    update: frozenset[str],
) -> Pins:
    """``pins``, which hold all sources from git, with what the image installs resolved anew, sources' wheels included.

    ``held`` are the packages of the images below, which stay as they are. What was in the closure stays in it at its
    version where that will do, unless ``update`` names ``python``, or the source that it is the wheel of. Raises
    SourceError.
    """
    resolver.say(f"resolving the Python packages of {definition.name} for {definition.platform}")
    needs = _runtime_requirements(definition, wants, _named_by_sources(definition, pins, resolver))
    asked = python.requested_packages(definition, pins.sources, held)
    moving = {source.package for name, source in definition.wheel_sources.items() if name in update}
    kept = pins.python.packages if pins.python and "python" not in update else ()
    before = tuple(package for package in kept if package.name not in moving)
    resolved = python.resolve(
        python.ClosureRequest(wants, asked, needs, definition.platform, before), resolver.settings, held
    )
    below = {package.name for package in held}
    own = replace(resolved.pin, packages=tuple(p for p in resolved.pin.packages if p.name not in below))
    return replace(pins, python=own, sources={**pins.sources, **_wheel_pins(definition, resolved, resolver)})


def to_build(
    definition: ImageDefinition,
    wants: PythonRequirements,
    pins: Pins,
    held: tuple[LockedPackage, ...],
    resolver: Resolver,
    update: frozenset[str],
) -> Pins:
    """``pins``, which hold all else, with what it takes to build the sources from git; see ``to_run``."""
    if not wants.build:
        return replace(pins, build=None)
    named = _named_by_sources(definition, pins, resolver).get("flashinfer", ())
    before = pins.build.packages if pins.build and "build" not in update else ()
    needs = (*wants.build, *_BUILT_AGAINST, *named)
    request = python.ClosureRequest(wants, python.requested_build_packages(wants), needs, definition.platform, before)
    there = (*held, *(pins.python.packages if pins.python else ()))
    return replace(pins, build=python.resolve(request, resolver.settings, there).pin)


def without(requirements: tuple[str, ...], names: set[str]) -> tuple[str, ...]:
    """The requirements that are not for one of these packages. Raises SourceError for what is no requirement."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    found = []
    for text in requirements:
        try:
            package = Requirement(text).name
        except InvalidRequirement as error:
            raise SourceError(f"`{text}` is not a requirement: {str(error).splitlines()[0]}") from None
        if canonicalize_name(package) not in names:
            found.append(text)
    return tuple(found)


def _named_by_sources(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> dict[str, tuple[str, ...]]:
    """What the sources taken from git say that they need to run, without what is itself built from source."""
    from builder.sources.git import mirror_reading

    built = {name for source in definition.git_sources for name in MAKES.get(source, ())}
    found: dict[str, tuple[str, ...]] = {}
    for name, source in definition.git_sources.items():
        commit = str(pins.sources[name].commit)
        for file in source.requirements:
            mirrors = resolver.project.mirrors
            lines = mirror_reading.read_requirements(mirrors, source.git, commit, file, resolver.say)
            try:
                found[name] = (*found.get(name, ()), *without(lines, built))
            except SourceError as error:
                raise SourceError(f"{file} of {name} at {commit[:12]}: {error.message}") from None
    return found


def _runtime_requirements(
    definition: ImageDefinition, wants: PythonRequirements, named: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """All that the image installs: wheels, packages, what its sources need, and uv, which installs the others."""
    from_sources = (line for lines in named.values() for line in lines)
    wheels = (source.requirement for source in definition.wheel_sources.values())
    return tuple(dict.fromkeys([*wheels, *wants.packages, *from_sources, "uv"]))


def _wheel_pins(
    definition: ImageDefinition, resolved: python.ResolvedClosure, resolver: Resolver
) -> dict[str, WheelPin]:
    """A wheel's version is the one in the locked closure, so that the two cannot disagree."""
    from builder.sources.wheels import wheel_commit

    versions = {package.name: package.version for package in resolved.pin.packages}
    found = {}
    for name, source in definition.wheel_sources.items():
        address = resolved.addresses.get(source.package)
        commit = wheel_commit.read(address, resolver.settings.ca_file) if address else None
        found[name] = WheelPin(source.requested, versions[source.package], commit)
    return found
