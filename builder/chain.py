"""The pins of a chain of definitions, the lowest first: each resolves against what the ones below already hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from builder import pinned
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.engine.endpoint import Endpoint
    from builder.events import Report
    from builder.lock.model import Lock
    from builder.lock.pins import LockedPackage
    from builder.project import Project

Update = Mapping[str, str | None]
"""Names of what to resolve anew (``vllm``, ``python``), each with the git ref to take, or None for the definition's."""


def complete(
    project: Project,
    endpoint: Endpoint,
    lock: Lock,
    chain: tuple[ImageDefinition, ...],
    update: Update,
    environ: Mapping[str, str],
    report: Report,
    *,
    locked: bool,
) -> tuple[pinned.Completed, ...]:
    """Pins that cover each definition of ``chain``; from ``lock`` where they do. See ``pinned.complete``."""
    updates = _update_of_each(chain, update)
    held: tuple[LockedPackage, ...] = ()
    found: list[pinned.Completed] = []
    for definition in chain:
        pins = lock.pins_of(definition.name, definition.platform)
        completed = pinned.Completed(pins, {})
        if updates[definition.name] or pinned.uncovered(definition, pins):
            resolver = _resolver(project, endpoint, definition, held, environ, report)
            completed = pinned.complete(definition, pins, resolver, updates[definition.name], locked=locked)
        found.append(completed)
        if completed.pins.python:
            held = (*held, *completed.pins.python.packages)
    return tuple(found)


def _update_of_each(chain: tuple[ImageDefinition, ...], asked: Update) -> dict[str, dict[str, str | None]]:
    """What to update in each definition: a name means the highest definition that has such a source.

    Raises UsageError for a name that none has.
    """
    found: dict[str, dict[str, str | None]] = {definition.name: {} for definition in chain}
    for name, ref in asked.items():
        owner = next((one for one in reversed(chain) if name in pinned.names(one)), None)
        if owner is None:
            known = sorted({known for one in chain for known in pinned.names(one)})
            raise UsageError(f"{chain[-1].name} has no source `{name}`", hint=f"its sources: {', '.join(known)}")
        found[owner.name][name] = ref
    return found


def _resolver(
    project: Project,
    endpoint: Endpoint,
    definition: ImageDefinition,
    held: tuple[LockedPackage, ...],
    environ: Mapping[str, str],
    report: Report,
) -> pinned.Resolver:
    from builder.engine import base
    from builder.sources import environment

    return pinned.Resolver(
        settings=environment.read(environ),
        base=lambda reference: base.resolve(endpoint, reference, definition.platform),
        mirrors=project.mirrors,
        held=held,
        report=report,
    )
