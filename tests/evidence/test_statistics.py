"""Comparisons of series that are known, and properties of all of them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.evidence import statistics
from builder.evidence.statistics import SeriesComparison, compare_runs

RUNS = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=5)
ROUNDS = st.lists(RUNS, min_size=1, max_size=6)


def rounds(numbers: random.Random, mean: float, *, count: int, between: float, within: float) -> list[list[float]]:
    result = []
    for _ in range(count):
        shift = numbers.gauss(0, between)
        result.append([mean * math.exp(shift + numbers.gauss(0, within)) for _ in range(3)])
    return result


def in_turn(numbers: random.Random, slower: float, between: float, within: float) -> SeriesComparison:
    """The comparison of two that are measured round by round until it is settled, as `alternation` does."""
    first: list[list[float]] = []
    second: list[list[float]] = []
    while True:
        first += rounds(numbers, 50, count=1, between=between, within=within)
        second += rounds(numbers, 50 * slower, count=1, between=between, within=within)
        compared = compare_runs(first, second, "higher")
        enough = len(first) >= statistics.FEWEST_ROUNDS and compared.is_settled
        if enough or len(first) == statistics.MOST_ROUNDS:
            return compared


# The spread of decoding is below 5 %, that of reading below 2 %; starts differ, too.
@pytest.mark.parametrize(("between", "within"), [(0, 0.005), (0, 0.02), (0, 0.04), (0.01, 0.01), (0.015, 0.005)])
def test_the_same_is_never_worse_and_a_tenth_slower_always_is(between: float, within: float) -> None:
    numbers = random.Random(7)  # noqa: S311
    same = [in_turn(numbers, 1.0, between, within).verdict for _ in range(100)]
    slower = [in_turn(numbers, 0.9, between, within).verdict for _ in range(100)]
    assert same.count("worse") <= 1, "of a hundred"
    assert slower.count("better") == 0
    assert slower.count("worse") >= 99


def test_noise_that_is_larger_than_the_difference_tells_nothing() -> None:
    numbers = random.Random(3)  # noqa: S311
    verdicts = [in_turn(numbers, 0.9, 0.2, 0.2).verdict for _ in range(50)]
    assert verdicts.count("no difference") > 40


def test_one_sample_gives_no_verdict() -> None:
    assert compare_runs([[50.0]], [[5.0]], "higher").verdict == "no difference"
    assert compare_runs([[50.0, 50.1, 49.9]], [[5.0, 5.1, 4.9]], "higher").verdict == "no difference"
    two = compare_runs([[50.0, 50.1], [50.2, 49.9]], [[5.0, 5.1], [5.0, 4.9]], "higher")
    assert two.verdict == "no difference"


def test_rounds_that_differ_more_than_their_runs_are_what_was_measured() -> None:
    # 45 runs that hardly differ within a round would make any difference sure.
    first = [[50 + shift + run / 1000 for run in range(9)] for shift in (-3, 0, 3)]
    second = [[49 + shift + run / 1000 for run in range(9)] for shift in (-3, 0, 3)]
    compared = compare_runs(first, second, "higher")
    assert compared.verdict == "no difference"
    assert compared.low < -0.2 < 0.2 < compared.high


def test_a_difference_that_is_sure_and_tiny_is_none() -> None:
    first, second = [[100.0, 100.01]] * 4, [[101.0, 101.01]] * 4
    compared = compare_runs(first, second, "higher")
    assert compared.low > 0
    assert compared.verdict == "no difference"


def test_the_direction_decides_which_is_better() -> None:
    slow, fast = [[100.0, 101.0, 99.0]] * 3, [[50.0, 51.0, 49.0]] * 3
    assert compare_runs(slow, fast, "higher").verdict == "worse"
    assert compare_runs(slow, fast, "lower").verdict == "better"


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_positive_number_tells_nothing(value: float) -> None:
    compared = compare_runs([[50.0, 50.1]] * 3, [[value, 5.0], [5.0, 5.1], [5.0, 4.9]], "higher")
    assert compared.verdict == "no difference"
    assert not compared.is_settled


# Tables of Student's distribution.
@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 10, 2.228), (0.9995, 4, 8.610), (0.9995, 30, 3.646)],
)
def test_quantiles_of_students_distribution(share: float, freedom: int, value: float) -> None:
    assert statistics._quantile(share, freedom) == pytest.approx(value, abs=0.001)


@given(ROUNDS, ROUNDS)
def test_exchanging_the_two_exchanges_the_verdict(first: list[list[float]], second: list[list[float]]) -> None:
    there, back = compare_runs(first, second, "higher"), compare_runs(second, first, "higher")
    exchanged = {"better": "worse", "worse": "better", "no difference": "no difference"}
    # The smallest difference that is told is a share of the first, which is not the same one.
    if abs(there.change) > 0.03 and abs(back.change) > 0.03:
        assert back.verdict == exchanged[there.verdict]


@given(ROUNDS, ROUNDS, st.floats(1e-3, 1e3))
def test_units_change_nothing(first: list[list[float]], second: list[list[float]], factor: float) -> None:
    plain = compare_runs(first, second, "higher")
    more, others = ([[value * factor for value in runs] for runs in side] for side in (first, second))
    scaled = compare_runs(more, others, "higher")
    assert scaled.change == pytest.approx(plain.change, rel=1e-6, abs=1e-9)


@given(ROUNDS, ROUNDS)
def test_the_change_lies_in_its_band(first: list[list[float]], second: list[list[float]]) -> None:
    compared = compare_runs(first, second, "higher")
    assert compared.low <= compared.change <= compared.high
    if compared.verdict != "no difference":
        assert min(len(first), len(second)) >= statistics.FEWEST_ROUNDS
        assert not compared.low <= 0 <= compared.high


@given(ROUNDS)
def test_a_series_does_not_differ_from_itself(series: list[list[float]]) -> None:
    assert compare_runs(series, series, "higher").verdict == "no difference"


@given(ROUNDS, ROUNDS)
def test_the_more_is_judged_at_once_the_wider_the_band(first: list[list[float]], second: list[list[float]]) -> None:
    one, many = compare_runs(first, second, "higher"), compare_runs(first, second, "higher", together=9)
    assert many.low <= one.low
    assert many.high >= one.high


def test_the_spread_of_a_series() -> None:
    assert statistics.spread([9, 10, 11]) == pytest.approx(0.1)
    assert statistics.spread([5]) == 0
    assert statistics.spread([]) == 0
