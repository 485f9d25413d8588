"""The pins of one build: from images.lock where they still cover what is asked, resolved where they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.errors import LockError, UsageError
from builder.events import Report, Said
from builder.lock.pins import BasePin, Pins, PythonPin, WheelPin
from builder.sources import python

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.sources.environment import Settings


def uncovered(definition: ImageDefinition, pins: Pins) -> tuple[str, ...]:
    """The sources of ``definition`` that ``pins`` do not cover, or cover for another wish than today's."""
    open_ones = [] if pins.base and pins.base.asked == definition.base else ["base"]
    for source, requirement in definition.wheels.items():
        pin = pins.sources.get(source)
        if pin is None or pin.asked != requirement:
            open_ones.append(source)
    if definition.python:
        asked = python.wanted(definition.python, definition.wheels)
        if pins.python is None or pins.python.asked != asked:
            open_ones.append("python")
    return tuple(open_ones)


def complete(
    definition: ImageDefinition,
    pins: Pins,
    settings: Settings,
    resolve_base: Callable[[str], str],
    *,
    update: frozenset[str],
    locked: bool,
    report: Report,
) -> Pins:
    """``pins`` with everything resolved that is missing, stale or named in ``update``; nothing else moves.

    Raises LockError where something would have to be resolved and ``locked`` forbids it, UsageError where ``update``
    names no source of this definition, SourceError where a source does not answer or does not exist.
    """
    sources = {"base", *definition.wheels, *(["python"] if definition.python else [])}
    unknown = sorted(update - sources)
    if unknown:
        raise UsageError(
            f"{definition.name} has no source `{unknown[0]}`", hint=f"its sources: {', '.join(sorted(sources))}"
        )
    wanted = set(uncovered(definition, pins)) | update
    if wanted and locked:
        raise LockError(
            f"images.lock does not cover {', '.join(sorted(wanted))} of {definition.name} on {definition.platform}",
            hint="build once without --locked, and commit images.lock",
        )
    if "base" in wanted:
        report(Said(f"resolving the base image {definition.base}"))
        pins = replace(pins, base=BasePin(definition.base, resolve_base(definition.base)))
    if definition.python and wanted - {"base"}:
        report(Said(f"resolving the Python packages for {definition.platform}"))
        pins = replace(pins, python=python.resolve(definition.python, definition.wheels, definition.platform, settings))
    return replace(pins, sources=_sources(definition, pins.python))


def _sources(definition: ImageDefinition, pin: PythonPin | None) -> dict[str, WheelPin]:
    """A wheel's version is the one in the locked closure, so that the two cannot disagree."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    versions = {package.name: package.version for package in pin.packages} if pin else {}
    return {
        source: WheelPin(requirement, versions[canonicalize_name(Requirement(requirement).name)])
        for source, requirement in definition.wheels.items()
    }
