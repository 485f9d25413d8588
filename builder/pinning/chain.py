"""The pins of all definitions that a command is about: those of a chain from the lowest up, each definition once.

Each resolves against what the ones below it hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from builder.errors import LockError, UsageError
from builder.pinning import definition_pins, resolver

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.lock.model import Lock
    from builder.lock.pins import Pins
    from builder.workspace import Workspace

Chain = tuple["ImageDefinition", ...]
"""A definition and those that it stands on, the lowest first."""

Update = Mapping[str, str | None]
"""Names of what to resolve anew (``vllm``, ``python``), each with the git ref to take, or None for the definition's."""


def complete(
    workspace: Workspace, lock: Lock, chains: Sequence[Chain], update: Update
) -> dict[str, definition_pins.Completed]:
    """Pins for every definition of ``chains``, by name; from ``lock`` where they cover what is asked. No source is
    asked twice. See ``pinned.complete``."""
    updates = _update_of_each(chains, update)
    asking = resolver.make(workspace)
    found: dict[str, definition_pins.Completed] = {}
    for chain in chains:
        held: definition_pins.Held = ()
        for definition in chain:
            name = definition.name
            if name not in found:
                pins = lock.pins_of(name, definition.platform)
                found[name] = definition_pins.Completed(pins)
                if updates[name] or definition_pins.uncovered(definition, pins, held):
                    found[name] = definition_pins.complete(definition, pins, held, asking, updates[name])
            held = _held_with(definition, found[name].pins, held)
    return found


def uncovered(lock: Lock, chain: Chain) -> dict[str, tuple[str, ...]]:
    """What images.lock does not cover of each definition of ``chain``, by its name; without those that it covers."""
    found = {}
    held: definition_pins.Held = ()
    for definition in chain:
        pins = lock.pins_of(definition.name, definition.platform)
        missing = definition_pins.uncovered(definition, pins, held)
        if missing:
            found[definition.name] = missing
        held = _held_with(definition, pins, held)
    return found


def require_covered(lock: Lock, chain: Chain) -> None:
    """Raises LockError where something of ``chain`` would have to be resolved."""
    for name, missing in uncovered(lock, chain).items():
        raise LockError(
            f"images.lock does not cover {', '.join(sorted(missing))} of {name} on {chain[-1].platform}",
            hint=f"`builder lock {name}` resolves them; commit images.lock",
        )


def _held_with(definition: ImageDefinition, pins: Pins, held: definition_pins.Held) -> definition_pins.Held:
    """What an image on top of ``definition`` finds there; None where nothing can be said yet."""
    if held is None or {"python", *definition.sources} & set(definition_pins.uncovered(definition, pins, held)):
        return None
    return (*held, *pins.python.packages) if pins.python else held


def _update_of_each(chains: Sequence[Chain], asked: Update) -> dict[str, dict[str, str | None]]:
    """What to update in each definition: a name means the highest definition of a chain that has such a source.

    Raises UsageError for a name that none of the chains has.
    """
    found: dict[str, dict[str, str | None]] = {definition.name: {} for chain in chains for definition in chain}
    for name, ref in asked.items():
        owners = [
            next((one for one in reversed(chain) if name in definition_pins.names(one)), None) for chain in chains
        ]
        if not any(owners):
            known = sorted({known for chain in chains for one in chain for known in definition_pins.names(one)})
            targets = ", ".join(dict.fromkeys(chain[-1].name for chain in chains))
            raise UsageError(f"{targets} has no source `{name}`", hint=f"its sources: {', '.join(known)}")
        for owner in owners:
            if owner:
                found[owner.name][name] = ref
    return found
