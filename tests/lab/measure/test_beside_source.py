"""A checkpoint against its source: the scores of servers that rate texts well, worse, or not at all."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.base import events
from builder.base.errors import MeasuringError
from builder.lab.measure import beside_source
from builder.lab.measure.beside_source import RatedTexts, TokenScore
from tests.lab.measure.openai_server import Behaviour, serving

if TYPE_CHECKING:
    from tests.lab.measure.openai_server import Rater


OTHER = 300  # no byte is this token


def rater(loss: float = 0.0, noise: float = 0.0, wrong_every: int = 0) -> Rater:
    """A model that gives each byte the probability of 1 in 20, less by ``loss`` and some noise; each so manyth time it
    holds another token for likelier."""

    def rate(tokens: list[int]) -> list[dict[str, dict[str, Any]] | None]:
        numbers = random.Random(f"{tokens}")  # noqa: S311
        rated: list[dict[str, dict[str, Any]] | None] = [None]
        for place, token in enumerate(tokens[1:], 1):
            value = math.log(1 / 20) - loss + numbers.gauss(0, noise)
            is_wrong = bool(wrong_every) and place % wrong_every == 0
            entry = {str(token): {"logprob": value, "rank": 2 if is_wrong else 1, "decoded_token": "?"}}
            if is_wrong:
                entry[str(OTHER)] = {"logprob": -0.5, "rank": 1, "decoded_token": "!"}
            rated.append(entry)
        return rated

    return rate


def rated(behaviour: Behaviour) -> RatedTexts:
    with serving(behaviour) as served:
        return beside_source.rate_texts(served, "the source", events.ignore)


def judge(made: Rater, most_loss: float = 0.02) -> Any:
    by_source, by_made = rated(Behaviour(rater=rater())), rated(Behaviour(rater=made))
    return beside_source.judged(by_source, by_made, "Org/Model@main", most_loss)


def figures(outcome: Any) -> dict[str, float]:
    return {figure.name: figure.mean for figure in outcome.figures}


@pytest.mark.slow
def test_the_same_weights_lose_nothing() -> None:
    outcome = judge(rater())
    assert outcome.verdict == "pass"
    shown = figures(outcome)
    assert shown["perplexity"] == shown["perplexity_of_source"] == pytest.approx(20)
    assert shown["perplexity_change"] == 0
    assert shown["same_next_token"] == 1
    assert outcome.counts["tokens"] == sum(len(text.encode()) - 1 for text in beside_source.texts().values())
    assert outcome.sampling == {"source": "Org/Model@main", "most_loss": 0.02}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "noise", "most_loss", "verdict"),
    [
        (0.01, 0.1, 0.02, "pass"),
        (0.05, 0.1, 0.02, "fail"),
        (0.05, 0.1, 0.10, "pass"),
        (0.02, 4.0, 0.02, "unclear"),
        (-0.30, 0.1, 0.0, "pass"),
    ],
)
def test_a_loss_is_a_failure_where_it_is_surely_larger_than_allowed(
    loss: float, noise: float, most_loss: float, verdict: str
) -> None:
    outcome = judge(rater(loss, noise), most_loss)
    assert outcome.verdict == verdict
    shown = figures(outcome)
    assert shown["perplexity_change_low"] < math.expm1(loss) < shown["perplexity_change_high"]
    assert bool(outcome.findings) == (verdict != "pass")


@pytest.mark.slow
def test_another_likeliest_token_is_counted() -> None:
    assert figures(judge(rater(wrong_every=4)))["same_next_token"] == pytest.approx(0.75, abs=0.01)


@pytest.mark.slow
def test_a_text_longer_than_the_context_is_cut() -> None:
    behaviour = Behaviour(rater=rater(), context=100)
    assert len(rated(behaviour).scores) == len(beside_source.texts()) * 98
    prompts = [body["prompt"] for body in behaviour.requests if isinstance(body["prompt"], list)]
    assert {len(prompt) for prompt in prompts} == {99}


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: None,
        lambda _: [None],
        lambda tokens: [None] * len(tokens),
        lambda tokens: [{"7": {}} for _ in tokens],
        lambda tokens: [{str(token): {"logprob": "nan", "rank": 1}} for token in tokens],
        lambda tokens: [{str(token): {"logprob": -1.0}} for token in tokens],
    ],
)
def test_a_server_that_rates_nothing_is_told(answer: Any) -> None:
    with pytest.raises(MeasuringError, match="the source does not rate the text `story`"):
        rated(Behaviour(rater=answer))


def test_a_server_that_fails_is_told() -> None:
    with pytest.raises(MeasuringError, match="does not rate the text `explanation`: the server answers 500"):
        rated(Behaviour(rater=rater(), dies_after=2))


@pytest.mark.slow
def test_other_tokens_cannot_be_compared() -> None:
    whole = rated(Behaviour(rater=rater()))
    with pytest.raises(MeasuringError, match="cannot be compared: the two make other tokens"):
        beside_source.judged(whole, replace(whole, scores=whole.scores[1:]), "Org/Model@main", 0.02)


def test_what_no_probability_has_stays_a_number() -> None:
    # vLLM's value for the logarithm of nothing.
    nothing = [TokenScore(1, -9999.0, 2)] * 3
    compared = beside_source.compare_likeness([TokenScore(1, -1.0, 1)] * 3, nothing)
    assert math.isfinite(compared.change)
    assert compared.verdict(0.02) == "fail"


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=2, max_size=50))
def test_the_change_lies_in_its_band(values: list[tuple[float, float]]) -> None:
    first, second = ([TokenScore(1, pair[side], 1) for pair in values] for side in (0, 1))
    compared = beside_source.compare_likeness(first, second)
    assert compared.low <= compared.change <= compared.high
    of_first, of_second = compared.perplexities
    assert of_second / of_first == pytest.approx(1 + compared.change, rel=1e-6)


def test_the_texts_are_of_many_kinds_and_of_one_length() -> None:
    sizes = {name: len(text.encode()) for name, text in beside_source.texts().items()}
    assert len(sizes) >= 12
    assert min(sizes.values()) > 500
    assert max(sizes.values()) < 1200
