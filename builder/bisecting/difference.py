"""The difference between two numbers as the search sees it: axes, and what can be taken over one by one on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.bisecting.candidate import BisectCandidate


@dataclass(frozen=True)
class Axis:
    """One side on which two numbers differ: the base image, vLLM, the Python packages, a mod, the template, the flags
    of the recipe. ``units`` are what can be taken from either number by itself, in a fixed order; a name is used
    once."""

    name: str
    units: tuple[str, ...]


def is_inside_axis(axes: Iterable[Axis], tried: BisectCandidate) -> bool:
    """True for a candidate that takes a part of an axis, or is at a point between two ends."""
    counts = ((len(set(axis.units) & set(tried.taken)), len(axis.units)) for axis in axes)
    return bool(tried.points) or any(0 < taken < every for taken, every in counts)


@dataclass(frozen=True)
class Row:
    """The points strictly between two of a unit, in their order: commits, versions. ``after`` and ``before`` are empty
    for the unit's ends."""

    unit: str
    after: str
    before: str
    points: tuple[str, ...]


@dataclass(frozen=True)
class BisectSubject:
    """The subject of a search: the numbers in their order, from the end that counts as good to the one that is bad.

    ``axes`` tells the difference of two neighbours among them, the cheapest to change first. ``impossible`` says why a
    candidate cannot exist, and is empty where it may: a FlashInfer that the vLLM does not take. With ``find_fix`` the
    first number fails, the last one passes, and what mended it is looked for. ``single`` where the judge never gives
    two answers for one image."""

    numbers: tuple[int, ...]
    axes: Callable[[int, int], tuple[Axis, ...]]
    impossible: Callable[[int, int, frozenset[str]], str] = field(default=lambda *_: "")
    find_fix: bool = False
    single: bool = False
