"""A candidate: an image between two numbers, told by what it takes from which of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, order=True)
class BisectCandidate:
    """The number ``old`` with everything in ``taken`` as ``new`` has it. ``points`` puts some of what
    is taken at another place between the two: a commit, a version. A number itself is ``old`` and ``new`` at once."""

    old: int
    new: int
    taken: tuple[str, ...] = ()
    points: tuple[tuple[str, str], ...] = ()

    @property
    def number(self) -> int | None:
        """The number that it is, None where it has to be made."""
        return self.old if self.old == self.new else None


def of_number(number: int) -> BisectCandidate:
    """The candidate that a numbered image is."""
    return BisectCandidate(number, number)


def mixed(old: int, new: int, taken: frozenset[str], points: Mapping[str, str]) -> BisectCandidate:
    """The candidate of these parts, always in the same order, so that it is known again."""
    return BisectCandidate(old, new, tuple(sorted(taken)), tuple(sorted(points.items())))
