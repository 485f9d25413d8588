"""The statistics of two raters of the same texts: false alarms, faults above the noise, and what cannot be told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.evidence import statistics
from builder.evidence.statistics import FLOOR, LikenessComparison, compare_likeness, perplexity_change, sign_test

CELLS = 26
TOKENS = 128


def texts(
    numbers: np.random.Generator, noise: float, fault: float, shift: float = 0.0, count: int = 8
) -> LikenessComparison:
    """Texts of `TOKENS` tokens: each rating has ``noise`` of its own, and the second image a ``fault`` beside it."""
    loud = noise * np.exp(numbers.normal(0, 0.5, (count, 1)))  # some texts are louder than others
    a1, a2, b1, b2 = (numbers.normal(0, 1, (count, TOKENS)) * loud for _ in range(4))
    off = numbers.normal(-shift, fault, (count, TOKENS))
    own = np.abs(a1 - a2).mean(axis=1)
    apart = (np.abs(a1 - b1 - off) + np.abs(a2 - b2 - off)).mean(axis=1) / 2
    growth = (a1 + a2 - b1 - b2 - 2 * off).mean(axis=1) / 2
    return compare_likeness(own.tolist(), apart.tolist(), growth.tolist(), CELLS)


@pytest.mark.parametrize("noise", [0.0005, 0.01, 0.1])
def test_an_image_is_not_different_from_itself(noise: float) -> None:
    numbers = np.random.default_rng(1)  # the same every time
    verdicts = [texts(numbers, noise, 0).verdict for _ in range(CELLS * 20)]
    assert "different" not in verdicts
    assert verdicts.count("equivalent") > 0.99 * len(verdicts)


@pytest.mark.parametrize(("fault", "shift"), [(0.1, 0), (0.0, 0.05), (0.05, 0.05)])
def test_what_is_well_above_the_noise_is_found(fault: float, shift: float) -> None:
    numbers = np.random.default_rng(1)
    verdicts = [texts(numbers, 0.01, fault, shift, 100).verdict for _ in range(40)]
    assert verdicts.count("different") == 40


def test_the_same_values_are_identical_and_a_rounding_is_equivalent() -> None:
    assert compare_likeness([0.0] * 8, [0.0] * 8, [0.0] * 8, CELLS).verdict == "identical"
    assert compare_likeness([0.0] * 8, [1e-6] * 8, [1e-6] * 8, CELLS).verdict == "equivalent"
    assert compare_likeness([0.0] * 8, [FLOOR] * 8, [FLOOR] * 8, CELLS).verdict == "equivalent"
    assert compare_likeness([0.0] * 8, [10 * FLOOR] * 8, [0.0] * 8, CELLS).verdict == "different"


def test_too_few_texts_tell_nothing_and_say_how_many_would() -> None:
    one = compare_likeness([0.0], [0.5], [0.5], CELLS)
    assert (one.verdict, one.needed) == ("cannot tell", 4)
    two = compare_likeness([0.01, 0.01], [0.01, 0.05], [0.0, 0.0], CELLS)
    assert two.verdict == "cannot tell"
    assert 3 <= two.needed <= 200


def test_what_has_no_probability_stays_a_number() -> None:
    nothing = compare_likeness([0.0] * 3, [9990.0] * 3, [9990.0] * 3, CELLS)
    assert nothing.verdict == "different"
    assert math.isfinite(nothing.change)


def test_a_limit_holds_up_and_down_for_all_texts_and_for_each_kind() -> None:
    alike = [[0.0001, -0.0001, 0.0, 0.0002] for _ in range(10)]
    assert perplexity_change(alike).within(0.005) == "pass"
    assert perplexity_change([[0.02] * 4 for _ in range(10)]).within(0.005) == "fail"
    assert perplexity_change([[-0.02] * 4 for _ in range(10)]).within(0.005) == "fail"
    # One kind of many is off, which the mean of all hides.
    assert perplexity_change([*alike * 9, [0.02] * 4]).within(0.015) == "fail"
    assert perplexity_change([[0.3, -0.3], [0.2, -0.2]]).within(0.005) == "unclear"


@given(st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=6), min_size=1, max_size=6))
def test_the_change_of_perplexity_lies_in_its_band(series: list[list[float]]) -> None:
    change = perplexity_change(series)
    assert change.low <= change.change <= change.high
    assert change.within(10) in {"pass", "unclear"} or change.highest_low > 10


@pytest.mark.parametrize(("lost", "gained", "chance"), [(0, 0, 1), (1, 1, 1), (8, 0, 2 / 256), (5, 1, 14 / 64)])
def test_the_sign_test(lost: int, gained: int, chance: float) -> None:
    assert sign_test(lost, gained) == sign_test(gained, lost) == pytest.approx(chance)


def test_a_single_difference_has_an_endless_band() -> None:
    assert statistics.paired_band([0.5], 0.99) == (0.5, -math.inf, math.inf)
