"""The pins of one definition: those of images.lock where they are current, resolved anew where they are stale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from builder.errors import SourceError, UsageError
from builder.lock.pins import BasePin, GitPin, LockedPackage, Pins, SourcePin
from builder.pinning import closures, source_pins
from builder.sources import python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.image import ImageDefinition
    from builder.pinning.resolver import Resolver

Inherited = tuple[LockedPackage, ...] | None
"""The packages of the parent images; None where those are not all pinned, so that nothing on top of them can be."""


@dataclass(frozen=True)
class Fault:
    """A part of a definition that could not be resolved (``base``, ``vllm``, ``python`` …), and why."""

    definition: str
    name: str
    error: SourceError


@dataclass(frozen=True)
class ResolvedPins:
    """The pins of a definition, all of them where there are no ``faults``, and the patches that were vendored for them,
    by SHA-256."""

    pins: Pins
    patches: Mapping[str, bytes] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


def names(definition: ImageDefinition) -> tuple[str, ...]:
    """The names of all that is pinned: ``base``, the sources, ``python``, and ``build`` for what builds them."""
    wants = definition.python
    return (
        *(["base"] if definition.base else []),
        *definition.sources,
        *(["python"] if wants else []),
        *(["build"] if wants and wants.build else []),
    )


def stale(definition: ImageDefinition, pins: Pins, inherited: Inherited) -> tuple[str, ...]:
    """The names of those that ``pins`` lack, or have for another request than the definition's."""
    wants = definition.python
    requested = None if inherited is None else python.requested_packages(definition, pins.sources, inherited)
    current = {
        "base": pins.base is not None and pins.base.requested == definition.base,
        **{name: source_pins.is_current(source, pins.sources.get(name)) for name, source in definition.sources.items()},
        "python": bool(wants and pins.python and pins.python.requested == requested),
        "build": bool(wants and pins.build and pins.build.requested == python.requested_build_packages(wants)),
    }
    return tuple(name for name in names(definition) if not current[name])


def resolve_missing(
    definition: ImageDefinition, pins: Pins, inherited: Inherited, resolver: Resolver, update: Mapping[str, str | None]
) -> ResolvedPins:
    """``pins`` with everything resolved that is missing, stale or named in ``update``; nothing else moves.

    ``update`` maps names to the git ref to take instead of the definition's, or None. What cannot be resolved is among
    the faults. The sources and the closures move together or, where there is a closure already, not at all: a closure
    is that of its sources. Raises UsageError for a ref where none can be given, FileProblemsError for text that is not
    a requirement.
    """
    from builder.definitions import requirements

    for name, ref in update.items():
        if ref is not None and name not in definition.git_sources:
            raise UsageError(
                f"`--update {name}={ref}`: only a source taken from git can be moved to a ref",
                hint=f"write what you want into dockerfiles/{definition.name}/image.yaml",
            )
    requirements.check(resolver.project, definition)
    moving = set(stale(definition, pins, inherited)) | set(update)
    base = _base(definition, pins, resolver) if "base" in moving else ResolvedPins(pins)
    if not moving - {"base"}:
        return base
    rest = _sources(definition, pins, {name: update.get(name) for name in moving}, update, resolver)
    if not rest.faults and _need_closures(pins, rest.pins, moving - {"base"}, update):
        rest = _with_closures(definition, rest, inherited, resolver, frozenset(update))
    if rest.faults and pins.python:
        rest = ResolvedPins(pins, faults=rest.faults)
    return ResolvedPins(replace(rest.pins, base=base.pins.base), rest.patches, (*base.faults, *rest.faults))


def error_of(faults: Sequence[Fault]) -> SourceError:
    """One error that names all that could not be resolved, and everything that can be done about it."""
    message = "\n".join(f"{fault.definition} {fault.name}: {fault.error.message}" for fault in faults)
    return SourceError(message, hint="; ".join(dict.fromkeys(fault.error.hint for fault in faults if fault.error.hint)))


def _base(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> ResolvedPins:
    reference = str(definition.base)
    try:
        return ResolvedPins(replace(pins, base=BasePin(reference, resolver.base(reference, definition.platform))))
    except SourceError as error:
        return ResolvedPins(pins, faults=(Fault(definition.name, "base", error),))


def _sources(
    definition: ImageDefinition,
    pins: Pins,
    moving: Mapping[str, str | None],
    update: Mapping[str, str | None],
    resolver: Resolver,
) -> ResolvedPins:
    resolved = source_pins.resolve(definition, pins, moving, update, resolver)
    faults = tuple(Fault(definition.name, name, error) for name, error in resolved.errors.items())
    return ResolvedPins(replace(pins, sources=resolved.sources), resolved.patches, faults)


def _need_closures(before: Pins, after: Pins, moving: set[str], update: Mapping[str, str | None]) -> bool:
    """True if the packages may be others: not where only the pull requests of a commit changed that stays."""

    def commits(pins: Pins) -> dict[str, SourcePin]:
        return {name: replace(p, pulls=()) if isinstance(p, GitPin) else p for name, p in pins.sources.items()}

    git = {name for name, pin in after.sources.items() if isinstance(pin, GitPin)}
    return bool(update) or bool(moving - git) or commits(before) != commits(after)


def _with_closures(
    definition: ImageDefinition,
    resolved: ResolvedPins,
    inherited: Inherited,
    resolver: Resolver,
    update: frozenset[str],
) -> ResolvedPins:
    wants = definition.python
    if wants is None:
        return resolved
    if inherited is None:
        error = SourceError(f"{definition.parent}, its parent, is not pinned completely")
        return replace(resolved, faults=(Fault(definition.name, "python", error),))
    pins, name = resolved.pins, "python"
    try:
        # A build closure that was resolved for other sources does not belong to these pins, should the next one fail.
        pins = replace(closures.to_run(definition, wants, pins, inherited, resolver, update), build=None)
        name = "build"
        with_build = replace(pins, build=resolved.pins.build)
        pins = closures.to_build(definition, wants, with_build, inherited, resolver, update)
    except SourceError as error:
        return replace(resolved, pins=pins, faults=(Fault(definition.name, name, error),))
    return replace(resolved, pins=pins)
