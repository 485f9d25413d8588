"""Two series of measurements against each other: better, worse, or no difference beyond the noise.

A number is measured in several rounds, each with several runs, by turns with the other one. The machine differs from
one round to the next (a start, heat, neighbours) and from one run to the next. Where rounds differ clearly more than
the runs within them, the rounds are what was measured, and they are few; otherwise every run counts. The band is that
of Student's t on the logarithms, so that it is a share, and rates and times are judged alike.

Pure: nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Judgement = Literal["better", "worse", "no difference"]
Direction = Literal["higher", "lower"]
Rounds: TypeAlias = Sequence[Sequence[float]]

CONFIDENCE = 0.999
"""The share of comparisons in which the true difference lies in the band: of a thousand equal pairs, one in all is told
apart, half of those as worse."""
FEWEST_ROUNDS = 3
MOST_ROUNDS = 8
NARROW = 0.05
"""The half width of a band that needs no further round: a difference of a tenth lies outside of it."""
SMALLEST = 0.02
"""The smallest difference that is told, however sure it is."""

# Rounds whose variance is larger than that of runs by this factor count as the measurements.
_UNLIKE = 2.0
_FEWEST_VALUES = 2


@dataclass(frozen=True)
class SeriesComparison:
    """The result of a comparison. ``change`` is the difference as a share of the first (-0.1: a tenth less), which lies
    between ``low`` and ``high`` with `CONFIDENCE`; ``values`` are the measurements of each side."""

    verdict: Judgement
    change: float
    low: float
    high: float
    values: tuple[int, int]

    @property
    def is_settled(self) -> bool:
        """True if a further round would hardly change the verdict."""
        return self.verdict != "no difference" or max(self.change - self.low, self.high - self.change) <= NARROW


def compare(first: Rounds, second: Rounds, better: Direction, together: int = 1) -> SeriesComparison:
    """Compares the rounds of the first with those of the second. ``together`` is the number of figures that are judged
    at once: the more there are, the surer each verdict has to be.

    A verdict other than ``no difference`` takes `FEWEST_ROUNDS` rounds of each, with several runs in all, and a band
    that leaves out zero. Where a value is no positive number, nothing is told apart.
    """
    sides = [
        [[math.log(value) for value in runs if _is_usable(value)] for runs in rounds] for rounds in (first, second)
    ]
    sides = [[runs for runs in rounds if runs] for rounds in sides]
    counts = tuple(sum(map(len, rounds)) for rounds in sides)
    values = (counts[0], counts[1])
    unusable = any(not _is_usable(value) for rounds in (first, second) for runs in rounds for value in runs)
    if unusable or min(values) < _FEWEST_VALUES:
        return SeriesComparison("no difference", 0.0, -1.0, math.inf, values)
    difference = _mean(_flat(sides[1])) - _mean(_flat(sides[0]))
    error, freedom = _noise(sides)
    half = _quantile(1 - (1 - CONFIDENCE) / 2 / max(together, 1), freedom) * error
    change, low, high = (math.expm1(min(value, 700.0)) for value in (difference, difference - half, difference + half))
    rounds_each = min(len(rounds) for rounds in sides)
    is_sure = rounds_each >= FEWEST_ROUNDS and (low > 0 or high < 0) and abs(change) >= SMALLEST
    verdict: Judgement = (
        "no difference" if not is_sure else "better" if (change > 0) == (better == "higher") else "worse"
    )
    return SeriesComparison(verdict, change, low, high, values)


def spread(values: Sequence[float]) -> float:
    """The coefficient of variation of a sample; 0 of less than two values, or where they have no mean."""
    if len(values) < _FEWEST_VALUES or not (mean := math.fsum(values) / len(values)):
        return 0.0
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1)) / abs(mean)


def _is_usable(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [value for runs in rounds for value in runs]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _noise(sides: Sequence[Sequence[Sequence[float]]]) -> tuple[float, int]:
    """The standard error of the difference of the two means, and its degrees of freedom (one-way analysis of variance,
    rounds within sides)."""
    flat = [_flat(rounds) for rounds in sides]
    within = math.fsum(_squares(runs) for rounds in sides for runs in rounds)
    total = math.fsum(map(_squares, flat))
    rounds_freedom = sum(len(rounds) - 1 for rounds in sides)
    runs_freedom = sum(len(runs) - 1 for rounds in sides for runs in rounds)
    between = max(total - within, 0.0)
    if rounds_freedom and (not runs_freedom or between / rounds_freedom > _UNLIKE * within / runs_freedom):
        variance, freedom = between / rounds_freedom, rounds_freedom
    else:
        variance, freedom = total / (rounds_freedom + runs_freedom), rounds_freedom + runs_freedom
    return math.sqrt(variance * math.fsum(1 / len(values) for values in flat)), freedom


def _quantile(share: float, freedom: int) -> float:
    """The value below which ``share`` of Student's distribution lies."""
    low, high = 0.0, 1.0
    while _cumulative(high, freedom) < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _cumulative(middle, freedom) < share else (low, middle)
    return high


def _cumulative(value: float, freedom: int) -> float:
    """The share of Student's distribution below a positive value (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(value, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2
    term = total = cosine if is_odd else 1.0
    for step in range(2 + is_odd, freedom - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    odd = 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    inside = odd if is_odd else sine * total
    return (1 + inside) / 2
