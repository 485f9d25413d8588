"""The pins of all definitions that a command needs, chain by chain, with the base of each chain first.

Each definition is resolved once, with the packages that its image inherits from its parents in the chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from builder.base.errors import LockError, UsageError
from builder.pins import pinning, resolver

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.lock.model import Lock, Pins
    from builder.numbers.workspace import Workspace


Chain = tuple["ImageDefinition", ...]
"""A definition and its parents, the base first."""

Update = Mapping[str, str | None]
"""The names to resolve again (``vllm``, ``python``), each with the git ref to use, or None for the definition's ref."""


def resolve_missing(
    workspace: Workspace, lock: Lock, chains: Sequence[Chain], update: Update
) -> dict[str, pinning.ResolvedPins]:
    """The pins of every definition in ``chains``, by name. Pins in ``lock`` are kept, except stale pins and the names
    in ``update``. Each source is queried once. See `pinning.resolve_missing`."""
    updates = _update_of_each(chains, update)
    sources = resolver.make_resolver(workspace)
    completed: dict[str, pinning.ResolvedPins] = {}
    for chain in chains:
        inherited: pinning.Inherited = ()
        below = ""
        for definition in chain:
            name = definition.name
            if name not in completed:
                pins, own = lock.pins_of(name, definition.platform), updates[name]
                completed[name] = pinning.ResolvedPins(pins)
                if own or pinning.stale_pins(definition, pins, inherited):
                    completed[name] = pinning.resolve_missing(definition, pins, inherited, sources, own, below)
            closure = completed[name].pins.python
            below = closure.as_of if closure else below
            inherited = _inherited_from(definition, completed[name].pins, inherited)
    return completed


def stale_chain(lock: Lock, chain: Chain) -> dict[str, tuple[str, ...]]:
    names = {}
    inherited: pinning.Inherited = ()
    for definition in chain:
        pins = lock.pins_of(definition.name, definition.platform)
        if stale_here := pinning.stale_pins(definition, pins, inherited):
            names[definition.name] = stale_here
        inherited = _inherited_from(definition, pins, inherited)
    return names


def refuse_stale(lock: Lock, chain: Chain, platform: str | None = None) -> None:
    """Raises LockError if ``chain`` has a missing or stale pin. ``platform`` is the one that the user typed."""
    for definition, names in stale_chain(lock, chain).items():
        message = f"images.lock does not cover {', '.join(sorted(names))} of {definition} on {chain[-1].platform}"
        typed = f" --platform {platform}" if platform else ""
        raise LockError(message, hint=f"run `builder lock {definition}{typed}`, then commit images.lock")


def _inherited_from(definition: ImageDefinition, pins: Pins, inherited: pinning.Inherited) -> pinning.Inherited:
    """The packages that an image inherits from ``definition``; None if its pins are incomplete."""
    if inherited is None or {"python", *definition.sources} & set(pinning.stale_pins(definition, pins, inherited)):
        return None
    below = pinning.with_base(definition, pins, inherited)
    return (*below, *pins.python.packages) if below is not None and pins.python else below


def _update_of_each(chains: Sequence[Chain], update: Update) -> dict[str, dict[str, str | None]]:
    """The part of ``update`` for each definition. A name means the last definition of a chain that has such a source.
    Raises UsageError if no chain has the name."""
    updates: dict[str, dict[str, str | None]] = {definition.name: {} for chain in chains for definition in chain}
    for name, ref in update.items():
        having = [[each for each in chain if name in pinning.pin_names(each)] for chain in chains]
        if not any(having):
            sources = {source for chain in chains for definition in chain for source in pinning.pin_names(definition)}
            targets = list(dict.fromkeys(chain[-1].name for chain in chains))
            message = f"{', '.join(targets)} {'has' if len(targets) == 1 else 'have'} no source `{name}`"
            raise UsageError(message, hint=f"sources: {', '.join(sorted(sources))}; see `sources:` in image.yaml")
        for definitions in filter(None, having):
            updates[definitions[-1].name][name] = ref
    return updates
