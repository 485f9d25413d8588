"""Statistics of measurements: the difference of two series, its certainty, and the number of repeats of a check.

Two images are measured alternately in several rounds, each round with several runs. Rates and times are compared by
their logarithms, so a difference is a share. Its confidence band comes from Student's t. Nothing is measured here.

Whether two images rate texts alike is decided text by text. The distance of the second from the first is compared with
the distance of the first from itself in other batches.
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
"""The share of comparisons whose band contains the true difference."""
FEWEST_ROUNDS = 3
MOST_ROUNDS = 8
NARROW = 0.05
"""A band of at most this half width needs no further round: a difference of a tenth is outside the band."""
SMALLEST = 0.02
"""The smallest difference that is reported, even if a smaller one is certain."""
LEAST_SAMPLES = 2
"""A single sample says nothing about its spread."""

FEWEST_REPEATS = 4
"""Two whole and two streamed answers, if a check alternates between them."""
MOST_REPEATS = 10
_FEWEST_VALUES = 3
# The usual spread of decoding: https://github.com/eugr/llama-benchy
_SPREAD = 0.05
# Each round counts as one measurement if the variance between rounds exceeds the variance within by this factor.
_UNLIKE = 2.0


Likeness = Literal["identical", "equivalent", "different", "cannot tell"]
FALSE_ALARMS = 0.01
"""If an image is compared with itself, the largest probability that any of the verdicts is `different`."""
FLOOR = 0.001
"""A distance that rounding explains: it changes the logarithm of a probability by about this much."""
FACTOR = 2.0
"""The second is like the first if its distance is at most this many times the distance of the first from itself."""


@dataclass(frozen=True)
class SeriesComparison:
    """``change`` is the difference as a share of the first (-0.1: a tenth less). ``low`` and ``high`` are its band at
    `CONFIDENCE`; ``values`` counts the measurements of each side."""

    verdict: Judgement
    change: float
    low: float
    high: float
    values: tuple[int, int]

    @property
    def is_settled(self) -> bool:
        """True if another round is unlikely to change the verdict."""
        return self.verdict != "no difference" or max(self.change - self.low, self.high - self.change) <= NARROW


def compare_runs(first: Rounds, second: Rounds, better: Direction, together: int = 1) -> SeriesComparison:
    """Compares two series of rounds. A verdict other than `no difference` requires `FEWEST_ROUNDS` of each, a band
    without zero, and a change of at least `SMALLEST`. The more figures are judged ``together``, the wider the band.
    Values that are not positive cannot be compared."""
    sides = [
        [[math.log(v) if v > 0 else math.nan for v in runs] for runs in rounds if runs] for rounds in (first, second)
    ]
    flat = [[value for runs in rounds for value in runs] for rounds in sides]
    counts = len(flat[0]), len(flat[1])
    if min(counts) < LEAST_SAMPLES or not all(map(math.isfinite, flat[0] + flat[1])):
        return SeriesComparison("no difference", 0.0, -1.0, math.inf, counts)

    # One-way analysis of variance, rounds within sides. If rounds differ clearly more than the runs within them, each
    # round counts as one measurement; otherwise each run does.
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
    """The mean of paired differences, and its band with this ``confidence``. The band of a single difference is
    infinite."""
    mean, freedom = fmean(differences), len(differences) - 1
    if not freedom:
        return mean, -math.inf, math.inf
    error = math.sqrt(_squares(differences) / freedom / len(differences))
    half = _quantile((1 + confidence) / 2, freedom) * error
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class LikenessComparison:
    """``change`` is the change of perplexity as a share, with its band from ``low`` to ``high``. ``apart`` is the mean
    distance of the second from the first, ``noise`` of the first from itself. ``needed`` estimates the number of texts
    for a verdict; 0 if there is one."""

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
    """Compares two raters text by text. ``noise`` has the distances of the first from itself, and ``apart`` the
    distances of the second from the first: means of logarithms of probabilities. ``growth`` has the changes of the
    logarithm of the perplexity.

    The raters are different if one of two bands is outside its bound. The bound on the ratio of the distances (each
    plus `FLOOR`) is `FACTOR`; the bound on the growth is `FLOOR` plus `FACTOR` times the noise, up and down. By
    Bonferroni's correction, the bands of ``together`` comparisons, two each, are all right with a probability of 1 -
    `FALSE_ALARMS`.
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
    """The change of perplexity over all texts as a share, with its band from ``low`` to ``high``. ``highest_low`` and
    ``lowest_high`` come from the bands of each kind of text at each depth: the largest certain increase and
    decrease."""

    change: float
    low: float
    high: float
    highest_low: float
    lowest_high: float

    def within(self, limit: float) -> Literal["pass", "fail", "unclear"]:
        """Passes if the band over all texts is within plus or minus ``limit``, a share. Fails if that band, or the band
        of one kind at one depth, is outside."""
        if max(self.low, self.highest_low) > limit or min(self.high, self.lowest_high) < -limit:
            return "fail"
        return "pass" if -limit <= self.low and self.high <= limit else "unclear"


def perplexity_change(series: Sequence[Sequence[float]]) -> PerplexityChange:
    """The change of perplexity. Each series has the growths of its logarithm by text, for one kind of text at one
    depth."""
    grown, low, high = paired_band([each for values in series for each in values], 1 - FALSE_ALARMS)
    bands = [paired_band(values, 1 - FALSE_ALARMS / len(series)) for values in series]
    of_kinds = max(lowest for _, lowest, _ in bands), min(highest for _, _, highest in bands)
    return PerplexityChange(*map(expm1, (grown, low, high, *of_kinds)))


def expm1(logarithm: float) -> float:
    # vLLM writes -9999 for the logarithm of zero. JSON has no number for its exponential, so the exponent is limited.
    return math.expm1(min(logarithm, 70.0))


def sign_test(first: int, second: int) -> float:
    """The probability that chance alone divides the differing pairs at least this unevenly. This is the exact two-sided
    sign test, or McNemar's test for answers that are correct on only one side."""
    both = first + second
    tail = sum(math.comb(both, count) for count in range(min(first, second) + 1))
    return min(1.0, 2 * tail * 0.5**both)


def spread(values: Sequence[float]) -> float:
    """The coefficient of variation of a sample; 0 for fewer than two values or if the mean is 0."""
    if len(values) < LEAST_SAMPLES or not (mean := fmean(values)):
        return 0.0
    return math.sqrt(_squares(values) / (len(values) - 1)) / abs(mean)


def needs_more(passed: Sequence[bool]) -> bool:
    """True if more results are needed. `FEWEST_REPEATS` are enough if they agree; otherwise `MOST_REPEATS` are
    needed."""
    return len(passed) < (FEWEST_REPEATS if len(set(passed)) < 2 else MOST_REPEATS)


def needs_more_values(series: Sequence[Sequence[float]]) -> bool:
    """True if the spread of one of the series is still too large for a reliable mean."""
    count = min(map(len, series), default=MOST_REPEATS)
    if count >= MOST_REPEATS:
        return False
    return count < _FEWEST_VALUES or any(spread(values) / count**0.5 > _SPREAD / 2 for values in series)


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _quantile(share: float, freedom: int) -> float:
    """The ``share`` quantile of Student's distribution."""
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
