"""A made checkpoint is compared with a source of it: both rate the same texts, and the change of perplexity decides.

Scores are asked of vLLM's completions with ``prompt_logprobs``
(https://docs.vllm.ai/en/stable/api/vllm/sampling_params/), so that neither sampling nor drafts have a part in them.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from builder.base import words, yaml_file
from builder.base.errors import MeasuringError
from builder.base.http_client import NoAnswerError
from builder.evidence.run_record import Figure, Finding
from builder.evidence.statistics import LEAST_SAMPLES, paired_band
from builder.lab.measure import outcome, served_model
from builder.lab.measure.outcome import MeasuringProgress, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.base.events import Report
    from builder.lab.measure.served_model import ServedModel


CONFIDENCE = 0.99
NAME = "beside-source"
VERSION = "1"
_TEXTS = Path(__file__).with_name("fixed_texts.yaml")
_SECONDS = 600.0
_ANSWER = 1  # token, that a completion has to have; it shares the context with the prompt


@dataclass(frozen=True)
class TokenScore:
    """A token of a text, the natural logarithm of its probability, and the token that the model holds for likeliest
    there."""

    token: int
    log_probability: float
    likeliest: int


@dataclass(frozen=True)
class Likeness:
    """The second model against the first. ``change`` is of the perplexity as a share of the first's, between ``low``
    and ``high`` with `CONFIDENCE`; ``agreement`` is the share of places with the same likeliest token."""

    tokens: int
    perplexities: tuple[float, float]
    change: float
    low: float
    high: float
    agreement: float

    def verdict(self, most_loss: float) -> Literal["pass", "fail", "unclear"]:
        """The verdict where a loss of the share ``most_loss`` is allowed: unclear where the band holds that."""
        return "pass" if self.high <= most_loss else "fail" if self.low > most_loss else "unclear"


def compare_likeness(first: Sequence[TokenScore], second: Sequence[TokenScore]) -> Likeness:
    """Compares the scores of the same tokens. Raises ValueError where they are others, or too few."""
    if [score.token for score in first] != [score.token for score in second]:
        raise ValueError("the two make other tokens of the same texts")
    if len(first) < LEAST_SAMPLES:
        raise ValueError(f"{len(first)} tokens tell nothing")
    pairs = list(zip(first, second, strict=True))
    losses = [a.log_probability - b.log_probability for a, b in pairs]
    change, low, high = map(_growth, paired_band(losses, CONFIDENCE))
    same = sum(a.likeliest == b.likeliest for a, b in pairs)
    means = (fmean(score.log_probability for score in scores) for scores in (first, second))
    of_first, of_second = (1 + _growth(-mean) for mean in means)
    return Likeness(len(first), (of_first, of_second), change, low, high, same / len(first))


def _growth(logarithm: float) -> float:
    # vLLM writes -9999 for the logarithm of nothing: the exponential of that is no number that JSON has.
    return math.expm1(min(logarithm, 70.0))


def scores_of(served: ServedModel, text: str) -> tuple[TokenScore, ...]:
    """The scores of the text's tokens but the first, as many as the context takes. Raises NoAnswerError."""
    tokens = _tokens(served, text)[: served.context - _ANSWER]
    body = {"prompt": tokens, "max_tokens": _ANSWER, "temperature": 0, "prompt_logprobs": 1}
    answer = served_model.post(served, f"{served.address}/completions", body, _SECONDS)
    try:
        rated = answer["choices"][0]["prompt_logprobs"]
        if len(rated) != len(tokens):
            raise NoAnswerError(f"{len(rated)} tokens were rated, of {len(tokens)}")
        return tuple(map(_score, tokens[1:], rated[1:]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NoAnswerError(f"the answer rates no prompt: {type(error).__name__}: {error}") from None


def _tokens(served: ServedModel, text: str) -> list[int]:
    answer = served_model.post(served, f"{served.root}/tokenize", {"prompt": text}, _SECONDS)
    tokens = answer.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise NoAnswerError("the server does not tell the tokens of a text")
    return tokens


def _score(token: int, candidates: Mapping[str, Mapping[str, Any]]) -> TokenScore:
    own = candidates[str(token)]
    value = float(own["logprob"])
    if not math.isfinite(value):
        raise ValueError(f"{value} is the logarithm of no probability")
    likeliest = token if own["rank"] == 1 else min(candidates, key=lambda each: int(candidates[each]["rank"]))
    return TokenScore(token, value, int(likeliest))


@dataclass(frozen=True)
class RatedTexts:
    """All texts as one model rates them; ``started`` is RFC 3339 in UTC."""

    scores: tuple[TokenScore, ...]
    started: str
    seconds: float


@functools.cache
def texts() -> Mapping[str, str]:
    loaded: dict[str, str] = yaml_file.load(_TEXTS.read_text(encoding="utf-8"), _TEXTS.name)
    return loaded


def texts_digest() -> str:
    """The digest of the texts: figures of others are not comparable."""
    return outcome.outcome_digest([VERSION, texts()])


def rate_texts(served: ServedModel, what: str, report: Report) -> RatedTexts:
    """Has all texts rated by the served model, ``what`` in messages. Raises MeasuringError."""
    scores: list[TokenScore] = []
    began, started = time.monotonic(), words.now()
    for number, (name, text) in enumerate(texts().items()):
        report(MeasuringProgress.since(f"{what} rates {len(texts())} texts", number / len(texts()), began))
        try:
            scores += scores_of(served, text)
        except NoAnswerError as error:
            raise MeasuringError(
                f"{what} does not rate the text `{name}`: {error}",
                hint="the server has to answer /tokenize, and /v1/completions with `prompt_logprobs`, as vLLM's does",
            ) from None
    return RatedTexts(tuple(scores), started, time.monotonic() - began)


def judged(source: RatedTexts, made: RatedTexts, requested: str, most_loss: float) -> Outcome:
    """The outcome of the made weights against the source ``requested``, with an allowed loss of the share
    ``most_loss``. Raises MeasuringError."""
    try:
        compared = compare_likeness(source.scores, made.scores)
    except ValueError as error:
        raise MeasuringError(f"the checkpoint and {requested} cannot be compared: {error}") from None
    verdict = compared.verdict(most_loss)
    band = f"{compared.change:+.2%} ({compared.low:+.2%} … {compared.high:+.2%})"
    text = f"perplexity {band}, where {most_loss:.2%} is allowed"
    of_source, of_made = compared.perplexities
    return Outcome(
        kind="probe",
        name=NAME,
        version=f"{NAME} {VERSION}",
        set=texts_digest(),
        started=source.started,
        seconds=source.seconds + made.seconds,
        verdict=verdict,
        figures=(
            Figure("perplexity", {}, "", "lower", (of_made,)),
            Figure("perplexity_of_source", {}, "", "", (of_source,)),
            Figure("perplexity_change", {}, "ratio", "lower", (compared.change,)),
            Figure("perplexity_change_low", {}, "ratio", "", (compared.low,)),
            Figure("perplexity_change_high", {}, "ratio", "", (compared.high,)),
            Figure("same_next_token", {}, "ratio", "higher", (compared.agreement,)),
        ),
        findings=() if verdict == "pass" else (Finding("perplexity", requested, verdict, text),),
        counts={"texts": len(texts()), "tokens": compared.tokens},
        sampling={"source": requested, "most_loss": most_loss},
    )
