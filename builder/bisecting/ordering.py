"""The first bad one in a row: bisection with places that cannot be tried, the cheap ones first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.bisecting.trials import Word


MOST_MISSES = 40


@dataclass(frozen=True)
class Edge:
    """The step from good to bad: the last place that is ``good`` and the first that is ``bad``; everything in between
    was tried and could not be told."""

    good: int
    bad: int

    @property
    def is_exact(self) -> bool:
        return self.bad == self.good + 1


def edge(count: int, verdict: Callable[[int], Word], cheap: Sequence[int] = (), most_misses: int = MOST_MISSES) -> Edge:
    """The step from good to bad among the places 0 to ``count`` - 1, of which the first is good and the last bad. Those
    that are ``cheap`` are tried before all others. It is left as wide as it is after ``most_misses`` in a row."""
    step = Edge(0, count - 1)
    tried: dict[int, Word] = {}

    def remembered(place: int) -> Word:
        tried[place] = tried.get(place) or verdict(place)
        return tried[place]

    if cheap:
        step = _narrowed(step, sorted(cheap), remembered, most_misses)
    left = [place for place in range(step.good + 1, step.bad) if place not in tried]
    return _narrowed(step, left, remembered, most_misses)


def _narrowed(start: Edge, places: Sequence[int], verdict: Callable[[int], Word], most_misses: int) -> Edge:
    good, bad = start.good, start.bad
    left = list(places)
    misses = 0
    while misses < most_misses and (left := [place for place in left if good < place < bad]):
        place = _next(left, misses)
        word = verdict(place)
        misses = 0 if word in {"good", "bad"} else misses + 1
        if word == "good":
            good = place
        elif word == "bad":
            bad = place
        else:
            left.remove(place)
    return Edge(good, bad)


def _next(left: Sequence[int], misses: int) -> int:
    """The place to try: the middle. What cannot be tried comes in runs, so that each miss leads twice as far away from
    there, to either side in turn: a long run costs a few misses, and the halves stay nearly equal."""
    middle = len(left) // 2
    away = (1 << min(misses, 30)) - 1
    if away > middle // 2:
        return left[middle]
    return left[middle + (away if misses % 2 else -away)]
