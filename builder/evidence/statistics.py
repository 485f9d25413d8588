"""Statistics of measurements: how two series differ, whether one is sure enough, and how often a check is repeated.

Two images are measured in several rounds, by turns, each round with several runs. Rates and times are compared by their
logarithms, so that a difference is a share; it lies in a band by Student's t. Nothing is measured here.

Whether two images rate texts alike is decided text by text: how far the second is from the first, beside how far the
first is from itself in other batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal, TypeAlias

from builder.base.values import dataclass

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


Likeness = Literal["identical", "equivalent", "different", "cannot tell"]
FALSE_ALARMS = 0.01
"""The largest share of comparisons of an image with itself in which any of the verdicts together is `different`."""
FLOOR = 0.001
"""A distance that is nobody's fault: rounding moves the logarithm of a probability by so much."""
FACTOR = 2.0
"""The second is as the first while it is at most so many times as far from the first as the first from itself."""


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
    """The mean of paired differences, and the band in which the true one lies with this ``confidence``: an endless one
    of a single difference."""
    mean, freedom = fmean(differences), len(differences) - 1
    if not freedom:
        return mean, -math.inf, math.inf
    error = math.sqrt(_squares(differences) / freedom / len(differences))
    half = _quantile((1 + confidence) / 2, freedom) * error
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class LikenessComparison:
    """``change`` is of the perplexity, as a share, between ``low`` and ``high``; ``apart`` is the mean distance of the
    second from the first, ``noise`` that of the first from itself. ``needed`` counts the texts that would tell, 0 where
    the verdict is sure."""

    verdict: Likeness
    change: float
    low: float
    high: float
    apart: float
    noise: float
    needed: int = 0


def compare_likeness(
    noise: Sequence[float], apart: Sequence[float], growth: Sequence[float], together: int
) -> LikenessComparison:
    """Compares two raters by text: the distances of the first from itself (``noise``) and of the second from the first
    (``apart``), means of logarithms of probabilities, and the ``growth`` of the logarithm of the perplexity.

    Different are they where either band lies beyond its bound: that of the ratio of the distances (each with `FLOOR`)
    above `FACTOR`, or that of the growth outside of `FLOOR` and `FACTOR` times the noise's. The bound on false alarms
    is Bonferroni's: of ``together`` comparisons with two bands each, all hold with a probability of 1 - `FALSE_ALARMS`.
    """
    confidence = 1 - FALSE_ALARMS / (2 * together)
    mean_apart, mean_noise = fmean(apart), fmean(noise)
    grown, low, high = paired_band(growth, confidence)
    shown = (expm1(grown), expm1(low), expm1(high), mean_apart, mean_noise)
    if not any(apart):
        return LikenessComparison("identical", *shown)
    if mean_apart <= FLOOR:
        return LikenessComparison("equivalent", *shown)
    ratios = [math.log((far + FLOOR) / (own + FLOOR)) for far, own in zip(apart, noise, strict=True)]
    ratio, least, most = paired_band(ratios, confidence)
    bound, shift = math.log(FACTOR), FLOOR + FACTOR * mean_noise
    if least > bound or low > shift or high < -shift:
        return LikenessComparison("different", *shown)
    if most <= bound:
        return LikenessComparison("equivalent", *shown)
    width, distance = most - ratio, abs(bound - ratio)
    more = min((width / distance) ** 2 if distance > 0 else math.inf, 100.0) if math.isfinite(width) else 4.0
    return LikenessComparison("cannot tell", *shown, needed=max(len(apart) + 1, math.ceil(len(apart) * more)))


@dataclass(frozen=True)
class PerplexityChange:
    """The change of perplexity over all texts, as a share, between ``low`` and ``high``. ``highest_low`` and
    ``lowest_high`` are of the bands of each kind at each depth: the largest change that is sure, up and down."""

    change: float
    low: float
    high: float
    highest_low: float
    lowest_high: float

    def within(self, limit: float) -> Literal["pass", "fail", "unclear"]:
        """It passes where the band lies within the share ``limit``, up and down; it fails where that band, or the one
        of a kind at a depth, lies outside."""
        if max(self.low, self.highest_low) > limit or min(self.high, self.lowest_high) < -limit:
            return "fail"
        return "pass" if -limit <= self.low and self.high <= limit else "unclear"


def perplexity_change(series: Sequence[Sequence[float]]) -> PerplexityChange:
    """The change by the growths of the logarithm of the perplexity, by text, for each kind at each depth."""
    grown, low, high = paired_band([each for values in series for each in values], 1 - FALSE_ALARMS)
    bands = [paired_band(values, 1 - FALSE_ALARMS / len(series)) for values in series]
    of_kinds = max(lowest for _, lowest, _ in bands), min(highest for _, _, highest in bands)
    return PerplexityChange(*map(expm1, (grown, low, high, *of_kinds)))


def expm1(logarithm: float) -> float:
    # vLLM writes -9999 for the logarithm of nothing: the exponential of that is no number that JSON has.
    return math.expm1(min(logarithm, 70.0))


def sign_test(first: int, second: int) -> float:
    """The probability that of so many pairs which differ, at least so many speak for one side by chance: the exact sign
    test, two-sided, as McNemar's for answers that are right on one side alone."""
    both = first + second
    tail = sum(math.comb(both, count) for count in range(min(first, second) + 1))
    return min(1.0, 2 * tail * 0.5**both)


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
