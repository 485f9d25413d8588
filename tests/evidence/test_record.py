"""Figures derive their mean and spread."""

from __future__ import annotations

import statistics

import pytest

from builder.evidence.records import Figure


def figure(*values: float) -> Figure:
    return Figure("tg", {}, "tokens/s", "higher", values)


@pytest.mark.parametrize("values", [(50.0, 52.5, 51.0), (1e9, 1e9 + 1, 1e9 + 2), (0.1,) * 10])
def test_mean_and_deviation_are_those_of_a_sample(values: tuple[float, ...]) -> None:
    assert figure(*values).mean == pytest.approx(statistics.mean(values), rel=1e-12)
    assert figure(*values).std == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_one_value_has_no_deviation_and_none_no_mean() -> None:
    assert (figure(3.5).mean, figure(3.5).std) == (3.5, 0.0)
    assert (figure().mean, figure().std) == (0.0, 0.0)
