"""Two numbers measured in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from builder.base import events
from builder.base.errors import MeasuringError
from builder.evidence import statistics
from builder.evidence.run_record import Figure, Finding, Verdict
from builder.lab.measure.measurement import ComparedNumbers, Outcome, compare_alternating
from builder.lock.model import ImageName

FIRST, SECOND = ImageName("served", 6), ImageName("served", 7)
AT = {"depth": 0, "concurrency": 1, "pp": 2048, "tg": 128}


def outcome(*figures: Figure, verdict: Verdict = "pass") -> Outcome:
    findings = (Finding("answers", "", "fail", "the server no longer answers"),) if verdict == "fail" else ()
    return Outcome("bench", "quick", "t", "", "", 1, verdict, figures, findings)


def compare(measure: Callable[[ImageName], Outcome]) -> tuple[ComparedNumbers, list[ImageName]]:
    measured: list[ImageName] = []

    def noting(image: ImageName) -> Outcome:
        measured.append(image)
        return measure(image)

    return compare_alternating(FIRST, SECOND, noting, events.ignore), measured


def speeds(first: float, second: float) -> Callable[[ImageName], Outcome]:
    """Rates that drift by a hundredth from one measurement to the next, whichever is measured."""
    count = itertools.count()

    def measure(image: ImageName) -> Outcome:
        rate = (first if image == FIRST else second) * (1 - 0.002 * next(count))
        values = (rate, rate * 1.01, rate * 0.99)
        times = tuple(1000 / value for value in values)
        return outcome(
            Figure("tg", AT, "tokens/s", "higher", values),
            Figure("ttft", AT, "ms", "lower", times),
            Figure("memory_floor", {}, "bytes", "higher", (5.0 if image == FIRST else 1.0,)),
        )

    return measure


def test_they_are_measured_in_turn_until_it_is_clear() -> None:
    compared, measured = compare(speeds(50, 45))
    assert compared.judgement == "worse"
    assert measured == [FIRST, SECOND] * statistics.FEWEST_ROUNDS
    assert {figure.name: figure.comparison.verdict for figure in compared.figures} == {"tg": "worse", "ttft": "worse"}
    assert compare(speeds(45, 50))[0].judgement == "better"
    same, measured = compare(speeds(50, 50))
    assert same.judgement == "no difference"
    assert len(measured) <= 2 * statistics.MOST_ROUNDS


def test_one_figure_that_is_worse_makes_it_worse() -> None:
    def measure(image: ImageName) -> Outcome:
        rates = {FIRST: (50.0, 50.1, 49.9), SECOND: (60.0, 60.1, 59.9)}[image]
        times = {FIRST: (100.0, 101.0, 99.0), SECOND: (150.0, 151.0, 149.0)}[image]
        tg = Figure("tg", AT, "tokens/s", "higher", rates)
        return outcome(tg, Figure("ttft", AT, "ms", "lower", times))

    assert compare(measure)[0].judgement == "worse"


def test_a_server_that_fails_ends_it() -> None:
    compared, measured = compare(lambda image: speeds(50, 50)(image) if image == FIRST else outcome(verdict="fail"))
    assert compared.judgement == "worse"
    assert measured == [FIRST, SECOND]
    assert compared.failures == ("served:7: the server no longer answers",)
    compared, _ = compare(lambda _: outcome(verdict="fail"))
    assert compared.judgement == "no difference"
    assert len(compared.failures) == 2


def test_two_without_a_figure_in_common_are_not_compared() -> None:
    with pytest.raises(MeasuringError, match="no figure in common"):
        compare(lambda _: outcome())
