"""Counters of a server: a page that was cut anywhere gives no figure, and neither do two that do not go together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.lab.measure import bench
from builder.lab.measure.bench import UnreadableCountersError
from tests.measuring.openai_server import METRICS, Behaviour, serving

PAGE = METRICS.format(prompts=0, tokens=100, drafts=10, drafted=30, accepted=20)
LATER = METRICS.format(prompts=0, tokens=200, drafts=30, drafted=90, accepted=65)


def test_the_acceptance_between_two_pages() -> None:
    accepted = bench.acceptance(bench.parse_counters(PAGE), bench.parse_counters(LATER))
    assert accepted is not None
    assert accepted.rate == pytest.approx(45 / 60)
    assert accepted.length == pytest.approx(1 + 45 / 20)
    assert bench.acceptance(bench.parse_counters(PAGE), bench.parse_counters(PAGE)) is None


@given(st.integers(0, len(LATER) - 1))
def test_a_page_that_was_cut_gives_no_wrong_acceptance(end: int) -> None:
    whole = bench.acceptance(bench.parse_counters(PAGE), bench.parse_counters(LATER))
    try:
        accepted = bench.acceptance(bench.parse_counters(PAGE), bench.parse_counters(LATER[:end]))
    except UnreadableCountersError:
        return
    assert accepted == whole


def test_a_server_that_was_started_anew_has_no_acceptance() -> None:
    with pytest.raises(UnreadableCountersError, match="went back"):
        bench.acceptance(bench.parse_counters(LATER), bench.parse_counters(PAGE))


@pytest.mark.parametrize(
    "text",
    ["", "<html>", 'vllm:generation_tokens_total{engine="0"} NaN\n', 'vllm:generation_tokens_total{engine="0"} -3\n'],
)
def test_what_is_no_page_of_vllms(text: str) -> None:
    with pytest.raises(UnreadableCountersError):
        bench.parse_counters(text)


def test_acceptance_is_measured_over_fixed_prompts_at_temperature_0() -> None:
    behaviour = Behaviour(drafts=5, prefill=0, token=0)
    with serving(behaviour) as served:
        figures, findings = bench.measure_acceptance(served, lambda _: None)
    assert findings == ()
    assert [figure.name for figure in figures] == ["acceptance", "acceptance_length"]
    assert [figure.values[0] for figure in figures] == pytest.approx([2 / 3, 3.0])
    assert {body["temperature"] for body in behaviour.requests} == {0}
    assert len(behaviour.requests) == len(bench.PROMPTS)


def test_a_page_cut_in_half_makes_acceptance_unclear_and_no_drafts_none() -> None:
    with serving(Behaviour(drafts=5, prefill=0, page=lambda text: text[: len(text) // 2])) as served:
        figures, findings = bench.measure_acceptance(served, lambda _: None)
    assert figures == ()
    assert [finding.verdict for finding in findings] == ["unclear"]
    without = "\n".join(line for line in METRICS.splitlines() if "spec_decode" not in line) + "\n"
    with serving(Behaviour(page=lambda _: without.format(tokens=1, prompts=1))) as served:
        assert bench.measure_acceptance(served, lambda _: None) == ((), ())
