"""A made checkpoint held against a source of it: both rate the same texts, and the change of perplexity decides."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder import timestamp
from builder.errors import MeasuringError
from builder.evidence.record import Figure, Finding
from builder.http_client import NoAnswerError
from builder.measuring import likeness, outcome, token_scores
from builder.measuring.outcome import MeasuringProgress, Outcome
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.events import Report
    from builder.measuring.likeness import Likeness
    from builder.measuring.served_model import ServedModel
    from builder.measuring.token_scores import TokenScore

NAME = "beside-source"
VERSION = "1"
_TEXTS = Path(__file__).with_name("fixed_texts.yaml")


@dataclass(frozen=True)
class RatedTexts:
    """All texts as one model rates them: when that began (RFC 3339 in UTC), and the seconds that it took."""

    scores: tuple[TokenScore, ...]
    started: str
    seconds: float


@functools.cache
def texts() -> Mapping[str, str]:
    """The texts that are rated, by name."""
    loaded: dict[str, str] = yaml_file.load(_TEXTS.read_text(encoding="utf-8"), _TEXTS.name)
    return loaded


def digest() -> str:
    """The digest of the texts: figures of others are not comparable."""
    return outcome.digest([VERSION, texts()])


def rate(served: ServedModel, what: str, report: Report) -> RatedTexts:
    """Has all texts rated by the served model, which is called ``what`` in messages. Raises MeasuringError where the
    server does not."""
    scores: list[TokenScore] = []
    began, started = time.monotonic(), timestamp.now()
    for number, (name, text) in enumerate(texts().items()):
        share = number / len(texts())
        left = (time.monotonic() - began) * (1 - share) / share if share else None
        report(MeasuringProgress(f"{what} rates {len(texts())} texts", share, left))
        try:
            scores += token_scores.of(served, text)
        except NoAnswerError as error:
            raise MeasuringError(
                f"{what} does not rate the text `{name}`: {error}",
                hint="the server has to answer /tokenize, and /v1/completions with `prompt_logprobs`, as vLLM's does",
            ) from None
    return RatedTexts(tuple(scores), started, time.monotonic() - began)


def judged(source: RatedTexts, made: RatedTexts, requested: str, most_loss: float) -> Outcome:
    """The outcome of the made weights against those of the source ``requested``, which may be worse by the
    share ``most_loss``. Raises MeasuringError where the two cannot be compared."""
    try:
        compared = likeness.compare(source.scores, made.scores)
    except ValueError as error:
        raise MeasuringError(f"the checkpoint and {requested} cannot be compared: {error}") from None
    verdict = compared.verdict(most_loss)
    text = f"perplexity {_band(compared)}, where {most_loss:.2%} is allowed"
    findings = () if verdict == "pass" else (Finding("perplexity", requested, verdict, text),)
    return Outcome(
        kind="probe",
        name=NAME,
        version=f"{NAME} {VERSION}",
        set=digest(),
        started=source.started,
        seconds=source.seconds + made.seconds,
        verdict=verdict,
        figures=_figures(compared),
        findings=findings,
        counts={"texts": len(texts()), "tokens": compared.tokens},
        sampling={"source": requested, "most_loss": most_loss},
    )


def _figures(compared: Likeness) -> tuple[Figure, ...]:
    of_source, of_made = compared.perplexities
    return (
        Figure("perplexity", {}, "", "lower", (of_made,)),
        Figure("perplexity_of_source", {}, "", "", (of_source,)),
        Figure("perplexity_change", {}, "ratio", "lower", (compared.change,)),
        Figure("perplexity_change_low", {}, "ratio", "", (compared.low,)),
        Figure("perplexity_change_high", {}, "ratio", "", (compared.high,)),
        Figure("same_next_token", {}, "ratio", "higher", (compared.agreement,)),
    )


def _band(compared: Likeness) -> str:
    return f"{compared.change:+.2%} ({compared.low:+.2%} … {compared.high:+.2%})"
