"""The first bad one in a row: bisection with places that cannot be tried."""

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


def edge(count: int, verdict: Callable[[int], Word], most_misses: int = MOST_MISSES) -> Edge:
    """The step from good to bad among the places 0 to ``count`` - 1, of which the first is good and the last bad. It is
    left as wide as it is after ``most_misses`` in a row."""
    good, bad, misses = 0, count - 1, 0
    left = list(range(1, bad))
    while left and misses < most_misses:
        place = _next(left, misses)
        word = verdict(place)
        misses = 0 if word in {"good", "bad"} else misses + 1
        if word == "good":
            good = place
        elif word == "bad":
            bad = place
        left = [other for other in left if good < other < bad and other != place]
    return Edge(good, bad)


def _next(left: Sequence[int], misses: int) -> int:
    """The place to try: the middle. What cannot be tried comes in runs, so that each miss leads twice as far away from
    there, to either side in turn: a long run costs a few misses, and the halves stay nearly equal."""
    middle = len(left) // 2
    away = (1 << min(misses, 30)) - 1
    if away > middle // 2:
        return left[middle]
    return left[middle + (away if misses % 2 else -away)]
