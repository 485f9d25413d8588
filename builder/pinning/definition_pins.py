"""The pins of one definition: from images.lock where they still cover what is asked, resolved where they do not."""

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

Held = tuple[LockedPackage, ...] | None
"""The packages of the images below; None where those are not pinned whole, so that nothing can stand on them."""


@dataclass(frozen=True)
class Fault:
    """What of a definition could not be resolved (``base``, ``vllm``, ``python`` …), and why."""

    definition: str
    name: str
    error: SourceError


@dataclass(frozen=True)
class Completed:
    """Pins for a definition, which cover it where there are no ``faults``; and the diffs that were frozen for them, by
    SHA-256."""

    pins: Pins
    frozen: Mapping[str, bytes] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


def names(definition: ImageDefinition) -> tuple[str, ...]:
    """What of a definition can be pinned: ``base``, its sources, ``python``, and ``build`` for what builds them."""
    wants = definition.python
    return (
        *(["base"] if definition.base else []),
        *definition.sources,
        *(["python"] if wants else []),
        *(["build"] if wants and wants.build else []),
    )


def uncovered(definition: ImageDefinition, pins: Pins, held: Held) -> tuple[str, ...]:
    """What ``pins`` do not cover, or cover for another wish than today's."""
    wants = definition.python
    asked = None if held is None else python.requested_packages(definition, pins.sources, held)
    covered = {
        "base": pins.base is not None and pins.base.requested == definition.base,
        **{name: source_pins.covers(source, pins.sources.get(name)) for name, source in definition.sources.items()},
        "python": bool(wants and pins.python and pins.python.requested == asked),
        "build": bool(wants and pins.build and pins.build.requested == python.requested_build_packages(wants)),
    }
    return tuple(name for name in names(definition) if not covered[name])


def complete(
    definition: ImageDefinition, pins: Pins, held: Held, resolver: Resolver, update: Mapping[str, str | None]
) -> Completed:
    """``pins`` with everything resolved that is missing, stale or named in ``update``; nothing else moves.

    ``update`` maps names to the git ref to take instead of the definition's, or None. What cannot be resolved is among
    the faults. The sources and the closures move together or, where there is a closure already, not at all: a closure
    is that of its sources. Raises UsageError for a ref where none can be given, FileProblemsError for what is no
    requirement.
    """
    from builder.definitions import requirements

    for name, ref in update.items():
        if ref is not None and name not in definition.git_sources:
            raise UsageError(
                f"`--update {name}={ref}`: only a source taken from git can be moved to a ref",
                hint=f"write what you want into dockerfiles/{definition.name}/image.yaml",
            )
    requirements.check(resolver.project, definition)
    wanted = set(uncovered(definition, pins, held)) | set(update)
    base = _base(definition, pins, resolver) if "base" in wanted else Completed(pins)
    if not wanted - {"base"}:
        return base
    rest = _sources(definition, pins, {name: update.get(name) for name in wanted}, update, resolver)
    if not rest.faults and _need_closures(pins, rest.pins, wanted - {"base"}, update):
        rest = _with_closures(definition, rest, held, resolver, frozenset(update))
    if rest.faults and pins.python:
        rest = Completed(pins, faults=rest.faults)
    return Completed(replace(rest.pins, base=base.pins.base), rest.frozen, (*base.faults, *rest.faults))


def error_of(faults: Sequence[Fault]) -> SourceError:
    """One error that says all that could not be resolved, and everything that can be done about it."""
    said = "\n".join(f"{fault.definition} {fault.name}: {fault.error.message}" for fault in faults)
    return SourceError(said, hint="; ".join(dict.fromkeys(fault.error.hint for fault in faults if fault.error.hint)))


def _base(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> Completed:
    asked = str(definition.base)
    try:
        return Completed(replace(pins, base=BasePin(asked, resolver.base(asked, definition.platform))))
    except SourceError as error:
        return Completed(pins, faults=(Fault(definition.name, "base", error),))


def _sources(
    definition: ImageDefinition,
    pins: Pins,
    wanted: Mapping[str, str | None],
    update: Mapping[str, str | None],
    resolver: Resolver,
) -> Completed:
    found = source_pins.resolve(definition, pins, wanted, update, resolver)
    faults = tuple(Fault(definition.name, name, error) for name, error in found.errors.items())
    return Completed(replace(pins, sources=found.sources), found.frozen, faults)


def _need_closures(before: Pins, after: Pins, wanted: set[str], update: Mapping[str, str | None]) -> bool:
    """Whether the packages may be others: not where all that changed is the pull requests of a commit that stays."""

    def commits(pins: Pins) -> dict[str, SourcePin]:
        return {name: replace(p, pulls=()) if isinstance(p, GitPin) else p for name, p in pins.sources.items()}

    git = {name for name, pin in after.sources.items() if isinstance(pin, GitPin)}
    return bool(update) or bool(wanted - git) or commits(before) != commits(after)


def _with_closures(
    definition: ImageDefinition, found: Completed, held: Held, resolver: Resolver, update: frozenset[str]
) -> Completed:
    wants = definition.python
    if wants is None:
        return found
    if held is None:
        below = SourceError(f"{definition.parent}, which it stands on, is not pinned whole")
        return replace(found, faults=(Fault(definition.name, "python", below),))
    pins, name = found.pins, "python"
    try:
        # A closure that was resolved for other sources is none of these pins, should the next one fail.
        pins = replace(closures.to_run(definition, wants, pins, held, resolver, update), build=None)
        name = "build"
        pins = closures.to_build(definition, wants, replace(pins, build=found.pins.build), held, resolver, update)
    except SourceError as error:
        return replace(found, pins=pins, faults=(Fault(definition.name, name, error),))
    return replace(found, pins=pins)
