"""The Python closures of one definition: the packages that its image installs, and those that build its git sources.

Both belong to the commits that they were resolved for, since the requirement files of a source are part of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.errors import SourceError
from builder.lock.pins import LockedPackage, Pins, PythonPin, WheelPin
from builder.pinning import wheel_versions
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
    inherited: tuple[LockedPackage, ...],
    resolver: Resolver,
    update: Mapping[str, str | None],
    as_of: str = "",
) -> Pins:
    """``pins``, which hold all sources from git, with the packages that the image installs resolved anew, the wheels of
    sources included.

    ``inherited`` are the packages of the parent images, which stay as they are, and those of a base image that others
    build, of which only those move that the definition itself asks for. A package that was in the closure keeps
    its version where that still fits, unless ``update`` names ``python``, or the source that it is the wheel of; the
    wheel of a source goes to the version that ``update`` maps it to.
    Nothing is taken that was uploaded after ``as_of``, but the wheels of sources and what is requested by an exact
    version. Raises SourceError.
    """
    resolver.say(f"resolving the Python packages of {definition.name} for {definition.platform}")
    wheels = tuple(
        wheel_versions.requirement(source, pins.sources.get(name), update.get(name))
        for name, source in definition.wheel_sources.items()
    )
    of_sources = _requirements_of_sources(definition, pins, resolver)
    requirements = _runtime_requirements(wheels, wants, of_sources)
    requested = python.requested_packages(definition, pins.sources, inherited)
    moving = {source.package for name, source in definition.wheel_sources.items() if name in update}
    locked = pins.python.packages if pins.python and "python" not in update else ()
    previous = tuple(package for package in locked if package.name not in moving)
    exempt = exact(wants.packages) | {source.package for source in definition.wheel_sources.values()}
    request = python.ClosureRequest(wants, requested, requirements, definition.platform, previous, as_of, exempt)
    resolved = python.resolve(request, resolver.settings, inherited)
    _say_undated(definition, as_of, resolved.pin, resolver)
    there = {(package.name, package.version) for package in inherited}
    own = tuple(package for package in resolved.pin.packages if (package.name, package.version) not in there)
    return replace(
        pins,
        python=replace(resolved.pin, packages=own),
        sources={**pins.sources, **_wheel_pins(definition, resolved, resolver)},
    )


def to_build(
    definition: ImageDefinition,
    wants: PythonRequirements,
    pins: Pins,
    inherited: tuple[LockedPackage, ...],
    resolver: Resolver,
    update: Mapping[str, str | None],
    as_of: str = "",
) -> Pins:
    """``pins``, which hold all else, with the packages that it takes to build the sources from git; see ``to_run``."""
    if not wants.build:
        return replace(pins, build=None)
    flashinfer = _requirements_of_sources(definition, pins, resolver).get("flashinfer", ())
    previous = pins.build.packages if pins.build and "build" not in update else ()
    requirements = (*wants.build, *_BUILT_AGAINST, *flashinfer)
    requested = python.requested_build_packages(wants)
    exempt = exact(wants.build)
    request = python.ClosureRequest(wants, requested, requirements, definition.platform, previous, as_of, exempt)
    installed = (*inherited, *(pins.python.packages if pins.python else ()))
    return replace(pins, build=python.resolve(request, resolver.settings, installed).pin)


def exact(requirements: tuple[str, ...]) -> frozenset[str]:
    """The normalised names of the packages that are requested by an exact version: nobody takes one by chance that is
    newer than the rest."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    names = []
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if any(part.operator in {"==", "==="} and "*" not in part.version for part in requirement.specifier):
            names.append(canonicalize_name(requirement.name))
    return frozenset(names)


def _say_undated(definition: ImageDefinition, as_of: str, pin: PythonPin, resolver: Resolver) -> None:
    """Says where an index gives no upload dates, so that packages may be newer than they should be."""
    if as_of and not pin.as_of:
        resolver.say(
            f"{definition.name}: the package index gives no upload dates, so its packages are those of today, and not"
            f" of {as_of[:10]}"
        )
    elif pin.undated:
        resolver.say(
            f"{definition.name}: the index of {', '.join(pin.undated)} gives no upload dates, so these may be newer"
            f" than {as_of[:10]}"
        )


def without(requirements: tuple[str, ...], names: set[str]) -> tuple[str, ...]:
    """The requirements for other packages than these. Raises SourceError for text that is not a requirement."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    others = []
    for text in requirements:
        try:
            package = Requirement(text).name
        except InvalidRequirement as error:
            raise SourceError(f"`{text}` is not a requirement: {str(error).splitlines()[0]}") from None
        if canonicalize_name(package) not in names:
            others.append(text)
    return tuple(others)


def _requirements_of_sources(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> dict[str, tuple[str, ...]]:
    """The requirements in the files of each source from git, by source, without those that are built from source."""
    from builder.sources.git import mirror_reading

    built = {name for source in definition.git_sources for name in PACKAGES_BUILT_FROM.get(source, ())}
    requirements: dict[str, tuple[str, ...]] = {}
    for name, source in definition.git_sources.items():
        commit = str(pins.sources[name].commit)
        for file in source.requirements:
            mirrors = resolver.project.mirrors
            lines = mirror_reading.read_requirements(mirrors, source.git, commit, file, resolver.say)
            try:
                requirements[name] = (*requirements.get(name, ()), *without(lines, built))
            except SourceError as error:
                raise SourceError(f"{file} of {name} at {commit[:12]}: {error.message}") from None
    return requirements


def _runtime_requirements(
    wheels: tuple[str, ...], wants: PythonRequirements, of_sources: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """All that the image installs: wheels, packages, the requirements of its sources, and uv, which installs the
    others."""
    from_sources = (requirement for requirements in of_sources.values() for requirement in requirements)
    return tuple(dict.fromkeys([*wheels, *wants.packages, *from_sources, "uv"]))


def _wheel_pins(
    definition: ImageDefinition, resolved: python.ResolvedClosure, resolver: Resolver
) -> dict[str, WheelPin]:
    """The pins of the sources taken as wheels. A wheel's version is the one in the closure, so that the two agree."""
    from builder.sources.wheels import wheel_commit

    versions = {package.name: package.version for package in resolved.pin.packages}
    pins = {}
    for name, source in definition.wheel_sources.items():
        address = resolved.addresses.get(source.package)
        commit = wheel_commit.read(address, resolver.settings.ca_file) if address else None
        pins[name] = WheelPin(source.requested, versions[source.package], commit)
    return pins
