"""An order as images.lock has it: not a list, which two branches would both change, but a sequence for each of its
members, the highest for the latest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T", bound=Any)


def of(latest_first: Iterable[T]) -> dict[T, int]:
    """The sequence of each member of an order: 1 for the earliest."""
    return {member: sequence for sequence, member in enumerate(reversed(tuple(latest_first)), start=1)}


def latest_first(sequences: Mapping[T, int]) -> tuple[T, ...]:
    """The order that these sequences make. Of two members with the same one, given on two branches, the higher member
    counts as the later."""
    return tuple(sorted(sequences, key=lambda member: (sequences[member], member), reverse=True))
