"""Models behind one port: what the configuration of a router has to know of each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.definitions.recipes.container import ContainerSettings


@dataclass(frozen=True)
class RoutedModel:
    """A model that a router leads to: its name, the names by which its server knows it, the numbered image that serves
    it, the container, and the port of the machine that it answers on."""

    model: str
    served: tuple[str, ...]
    image: str
    container: ContainerSettings
    port: int

    @property
    def names(self) -> tuple[str, ...]:
        """All names that clients may use, the model's own first."""
        return tuple(dict.fromkeys((self.model, *self.served)))


def shared_ports(models: Sequence[RoutedModel]) -> Iterator[str]:
    """A line for each port that several models answer on: one of them at a time."""
    by_port: dict[int, list[str]] = defaultdict(list)
    for model in models:
        by_port[model.port].append(model.model)
    for port, names in sorted(by_port.items()):
        if len(names) > 1:
            yield f"{', '.join(names)} share port {port}: one is served at a time, unless its recipe gets another"


def unique_names(models: Sequence[RoutedModel]) -> dict[str, tuple[str, ...]]:
    """The further names of each model that no other one has: a router leads each name to one place."""
    owners: dict[str, set[str]] = defaultdict(set)
    for model in models:
        for name in model.names:
            owners[name].add(model.model)
    taken = {model.model for model in models}
    return {
        model.model: tuple(name for name in model.names[1:] if len(owners[name]) == 1 and name not in taken)
        for model in models
    }
