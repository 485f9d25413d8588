"""Statistics of measurements: how two series differ, whether one is sure enough, and how often a check is repeated.

Two images are measured in several rounds, by turns, each round with several runs. Rates and times are compared by their
logarithms, so that a difference is a share; it lies in a band by Student's t. Nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

Judgement = Literal["better", "worse", "no difference"]
Direction = Literal["higher", "lower"]
Rounds: TypeAlias = Sequence[Sequence[float]]

CONFIDENCE = 0.999
"""The share of comparisons whose band holds the true difference."""
FEWEST_ROUNDS = 3
MOST_ROUNDS = 8
NARROW = 0.05
"""The half width of a band that needs no further round: a difference of a tenth lies outside of it."""
SMALLEST = 0.02
"""The smallest difference that is reported, however sure it is."""
LEAST_SAMPLES = 2
"""A single sample says nothing about its spread."""

FEWEST_REPEATS = 4
"""Two whole and two streamed, where the two ways alternate."""
MOST_REPEATS = 10
_FEWEST_VALUES = 3
# The usual spread of decoding: https://github.com/eugr/llama-benchy
_SPREAD = 0.05
# Rounds whose variance exceeds that of the runs within them by this factor count as the measurements.
_UNLIKE = 2.0


@dataclass(frozen=True)
class SeriesComparison:
    """``change`` is the difference as a share of the first (-0.1: a tenth less), between ``low`` and ``high`` with
    `CONFIDENCE`; ``values`` counts the measurements."""

    verdict: Judgement
    change: float
    low: float
    high: float
    values: tuple[int, int]

    @property
    def is_settled(self) -> bool:
        """True if a further round would hardly change the verdict."""
        return self.verdict != "no difference" or max(self.change - self.low, self.high - self.change) <= NARROW


def compare_runs(first: Rounds, second: Rounds, better: Direction, together: int = 1) -> SeriesComparison:
    """Compares the rounds of the first with those of the second. The more figures are judged ``together``, the surer
    each verdict has to be: it takes `FEWEST_ROUNDS` of each and a band without zero. A value that is not positive makes
    the two incomparable."""
    sides = [
        [[math.log(v) if v > 0 else math.nan for v in runs] for runs in rounds if runs] for rounds in (first, second)
    ]
    flat = [[value for runs in rounds for value in runs] for rounds in sides]
    counts = len(flat[0]), len(flat[1])
    if min(counts) < LEAST_SAMPLES or not all(map(math.isfinite, flat[0] + flat[1])):
        return SeriesComparison("no difference", 0.0, -1.0, math.inf, counts)

    # One-way analysis of variance, rounds within sides: where rounds differ clearly more than the runs within them, the
    # rounds are what was measured, and they are few; otherwise every run counts.
    within = math.fsum(_squares(runs) for rounds in sides for runs in rounds)
    total = math.fsum(map(_squares, flat))
    between = max(total - within, 0.0)
    of_rounds = sum(len(rounds) - 1 for rounds in sides)
    of_runs = sum(len(runs) - 1 for rounds in sides for runs in rounds)
    if of_rounds and (not of_runs or between / of_rounds > _UNLIKE * within / of_runs):
        variance, freedom = between / of_rounds, of_rounds
    else:
        variance, freedom = total / (of_rounds + of_runs), of_rounds + of_runs

    difference = fmean(flat[1]) - fmean(flat[0])
    error = math.sqrt(variance * math.fsum(1 / count for count in counts))
    half = _quantile(1 - (1 - CONFIDENCE) / 2 / max(together, 1), freedom) * error
    change, low, high = (math.expm1(min(value, 700.0)) for value in (difference, difference - half, difference + half))
    is_sure = min(map(len, sides)) >= FEWEST_ROUNDS and (low > 0 or high < 0) and abs(change) >= SMALLEST
    verdict: Judgement = "better" if (change > 0) == (better == "higher") else "worse"
    return SeriesComparison(verdict if is_sure else "no difference", change, low, high, counts)


def paired_band(differences: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """The mean of paired differences, and the band in which the true one lies with this ``confidence``."""
    mean, freedom = fmean(differences), len(differences) - 1
    error = math.sqrt(_squares(differences) / freedom / len(differences))
    half = _quantile((1 + confidence) / 2, freedom) * error
    return mean, mean - half, mean + half


def spread(values: Sequence[float]) -> float:
    """The coefficient of variation of a sample; 0 of fewer than two values, or without a mean."""
    if len(values) < LEAST_SAMPLES or not (mean := fmean(values)):
        return 0.0
    return math.sqrt(_squares(values) / (len(values) - 1)) / abs(mean)


def needs_more(passed: Sequence[bool]) -> bool:
    """True while results do not show enough: `FEWEST_REPEATS` that agree do; where some passed and some failed,
    `MOST_REPEATS` show how often."""
    return len(passed) < (FEWEST_REPEATS if len(set(passed)) < 2 else MOST_REPEATS)


def needs_more_values(series: Sequence[Sequence[float]]) -> bool:
    """True while one of several series of values spreads too far for its mean to be sure."""
    count = min(map(len, series), default=MOST_REPEATS)
    if count >= MOST_REPEATS:
        return False
    return count < _FEWEST_VALUES or any(spread(values) / count**0.5 > _SPREAD / 2 for values in series)


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


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
    return (1 + (odd if is_odd else sine * total)) / 2
