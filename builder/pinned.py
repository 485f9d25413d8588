"""The pins of one definition: from images.lock where they still cover what is asked, resolved where they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions.image import MAKES, GitSource, WheelSource
from builder.errors import LockError, UsageError
from builder.events import Report, Said
from builder.lock.pins import BasePin, GitPin, LockedPackage, Pins, SourcePin, WheelPin
from builder.sources import python

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition, PythonWants, Source
    from builder.sources.environment import Settings

# Both are compiled against the torch that the image runs, and FlashInfer's wheels of kernels import the package itself.
_BUILT_AGAINST = ("torch",)


@dataclass(frozen=True)
class Resolver:
    """How sources are asked: the person's settings, the engine's answer for a base image, the folder of git mirrors,
    and the packages that the image below already holds, which stay as they are."""

    settings: Settings
    base: Callable[[str], str]
    mirrors: Path
    held: tuple[LockedPackage, ...]
    report: Report

    def say(self, text: str) -> None:
        """Passes on what a source has to say while it is asked."""
        self.report(Said(text))


@dataclass(frozen=True)
class Completed:
    """Pins that cover a definition, and the diffs that were frozen for them, by SHA-256."""

    pins: Pins
    frozen: Mapping[str, bytes]


def names(definition: ImageDefinition) -> tuple[str, ...]:
    """What of a definition can be pinned: ``base``, its sources, ``python``, and ``build`` for what builds them."""
    wants = definition.python
    return (
        *(["base"] if definition.base else []),
        *definition.sources,
        *(["python"] if wants else []),
        *(["build"] if wants and wants.build else []),
    )


def uncovered(definition: ImageDefinition, pins: Pins) -> tuple[str, ...]:
    """What ``pins`` do not cover, or cover for another wish than today's."""
    wants = definition.python
    covered = {
        "base": pins.base is not None and pins.base.asked == definition.base,
        **{name: _covers(source, pins.sources.get(name)) for name, source in definition.sources.items()},
        "python": bool(wants and pins.python and pins.python.asked == python.wanted(definition, pins.sources)),
        "build": bool(wants and pins.build and pins.build.asked == python.wanted_to_build(wants)),
    }
    return tuple(name for name in names(definition) if not covered[name])


def complete(
    definition: ImageDefinition, pins: Pins, resolver: Resolver, update: Mapping[str, str | None], *, locked: bool
) -> Completed:
    """``pins`` with everything resolved that is missing, stale or named in ``update``; nothing else moves.

    ``update`` maps names to the git ref to take instead of the definition's, or None. Raises LockError where something
    would have to be resolved and ``locked`` forbids it, UsageError for a ref where none can be given, SourceError where
    a source does not answer or does not exist.
    """
    for name, ref in update.items():
        if ref is not None and name not in definition.git_sources:
            raise UsageError(
                f"`--update {name}={ref}`: only a source taken from git can be moved to a ref",
                hint=f"write what you want into dockerfiles/{definition.name}/image.yaml",
            )
    wanted = set(uncovered(definition, pins)) | set(update)
    if wanted and locked:
        raise LockError(
            f"images.lock does not cover {', '.join(sorted(wanted))} of {definition.name} on {definition.platform}",
            hint=f"`builder lock {definition.name}` resolves them; commit images.lock",
        )
    if not wanted:
        return Completed(pins, {})
    if "base" in wanted and definition.base:
        resolver.report(Said(f"resolving the base image {definition.base}"))
        pins = replace(pins, base=BasePin(definition.base, resolver.base(definition.base)))
    git, frozen = _git_pins(definition, {name: update.get(name) for name in wanted}, resolver)
    kept = {name: pin for name, pin in pins.sources.items() if name in definition.sources}
    pins = replace(pins, sources={**kept, **git})
    if definition.python and wanted - {"base"}:
        pins = _python_pins(definition, definition.python, pins, resolver, frozenset(update))
    return Completed(pins, frozen)


def _covers(source: Source, pin: SourcePin | None) -> bool:
    if isinstance(source, WheelSource):
        return isinstance(pin, WheelPin) and pin.asked == source.requirement
    if not isinstance(pin, GitPin):
        return False
    from builder.sources import credentials

    numbers = tuple(pull.number for pull in pin.pulls)
    return (pin.git, pin.asked, numbers) == (credentials.split(source.git).url, source.ref, source.pulls)


def _git_pins(
    definition: ImageDefinition, wanted: Mapping[str, str | None], resolver: Resolver
) -> tuple[dict[str, GitPin], dict[str, bytes]]:
    sources = {name: source for name, source in definition.git_sources.items() if name in wanted}
    if not sources:
        return {}, {}
    from builder.sources import git

    resolver.report(Said(f"resolving {', '.join(f'{name} {wanted[name] or s.ref}' for name, s in sources.items())}"))
    asked = [(name, source.git, wanted[name] or source.ref) for name, source in sources.items()]
    frozen: dict[str, bytes] = {}
    pins = {}
    for name, pin in git.resolve_all(resolver.mirrors, asked, resolver.say).items():
        pins[name] = _with_pulls(resolver, replace(pin, asked=sources[name].ref), sources[name], frozen)
    return pins, frozen


def _with_pulls(resolver: Resolver, pin: GitPin, source: GitSource, frozen: dict[str, bytes]) -> GitPin:
    if not source.pulls:
        return pin
    from builder.sources import pull_check, pulls

    taken = [pulls.freeze(resolver.mirrors, source.git, number, pin.commit, resolver.say) for number in source.pulls]
    labelled = [(f"pull request {one.pin.number}", one.diff) for one in taken]
    pull_check.check(resolver.mirrors, source.git, pin.commit, labelled, resolver.say)
    frozen.update({one.pin.sha256: one.diff for one in taken})
    return replace(pin, pulls=tuple(one.pin for one in taken))


def _python_pins(
    definition: ImageDefinition, wants: PythonWants, pins: Pins, resolver: Resolver, update: frozenset[str]
) -> Pins:
    """``pins`` with the closures resolved anew. Unless they are named in ``update``, what can stay in them does."""
    resolver.report(Said(f"resolving the Python packages for {definition.platform}"))
    named = _named_by_sources(definition, pins, resolver)
    needs = _runtime_requirements(definition, wants, named)
    asked = python.wanted(definition, pins.sources)
    before = pins.python.packages if pins.python and "python" not in update else ()
    request = python.Request(wants, asked, needs, definition.platform, before)
    resolved = python.resolve(request, resolver.settings, resolver.held)
    closure = resolved.pin
    below = {package.name for package in resolver.held}
    own = replace(closure, packages=tuple(p for p in closure.packages if p.name not in below))
    wheels = _wheel_pins(definition, resolved, resolver)
    pins = replace(pins, python=own, sources={**pins.sources, **wheels})
    if not wants.build:
        return pins
    before = pins.build.packages if pins.build and "build" not in update else ()
    needs = (*wants.build, *_BUILT_AGAINST, *named.get("flashinfer", ()))
    request = python.Request(wants, python.wanted_to_build(wants), needs, definition.platform, before)
    return replace(pins, build=python.resolve(request, resolver.settings, (*resolver.held, *own.packages)).pin)


def _named_by_sources(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> dict[str, tuple[str, ...]]:
    """What the sources taken from git say that they need to run, without what is itself built from source."""
    from builder.sources import git_reading

    built = {name for source in definition.git_sources for name in MAKES.get(source, ())}
    found: dict[str, tuple[str, ...]] = {}
    for name, source in definition.git_sources.items():
        commit = str(pins.sources[name].commit)
        for file in source.requirements:
            lines = git_reading.read_requirements(resolver.mirrors, source.git, commit, file, resolver.say)
            found[name] = (*found.get(name, ()), *without(lines, built))
    return found


def without(requirements: tuple[str, ...], names: set[str]) -> tuple[str, ...]:
    """The requirements that are not for one of these packages."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    return tuple(text for text in requirements if canonicalize_name(Requirement(text).name) not in names)


def _runtime_requirements(
    definition: ImageDefinition, wants: PythonWants, named: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """All that the image installs: wheels, packages, what its sources need, and uv, which installs the others."""
    from_sources = (line for lines in named.values() for line in lines)
    return tuple(dict.fromkeys([*definition.wheels, *wants.packages, *from_sources, "uv"]))


def _wheel_pins(definition: ImageDefinition, resolved: python.Resolved, resolver: Resolver) -> dict[str, WheelPin]:
    """A wheel's version is the one in the locked closure, so that the two cannot disagree."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    from builder.sources import wheel_commit

    versions = {package.name: package.version for package in resolved.pin.packages}
    found = {}
    for name, source in definition.sources.items():
        if isinstance(source, WheelSource):
            package = canonicalize_name(Requirement(source.requirement).name)
            address = resolved.addresses.get(package)
            commit = wheel_commit.read(address, resolver.settings.ca_file) if address else None
            found[name] = WheelPin(source.requirement, versions[package], commit)
    return found
