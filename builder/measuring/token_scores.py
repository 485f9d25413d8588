"""The rating of given texts by a served model: the probability of each token, and the token it holds for likeliest.

Asked of vLLM's completions with ``prompt_logprobs``
(https://docs.vllm.ai/en/stable/api/vllm/sampling_params/, SamplingParams.prompt_logprobs): nothing is generated that
counts, so neither sampling nor drafts have a part in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.http_client import NoAnswerError
from builder.measuring import served_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.measuring.served_model import ServedModel

_SECONDS = 600.0
_ANSWER = 1  # token, that a completion has to have; it shares the context with the prompt


@dataclass(frozen=True)
class TokenScore:
    """A token of a text as a model rates it after those before: the natural logarithm of its probability, and the token
    that the model holds for likeliest there."""

    token: int
    log_probability: float
    likeliest: int


def of(served: ServedModel, text: str) -> tuple[TokenScore, ...]:
    """The scores of the text's tokens but the first, as many as the context takes. Raises NoAnswerError where the
    server gives none, or none that can be."""
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
    return TokenScore(token, value, token if own["rank"] == 1 else _likeliest(candidates))


def _likeliest(candidates: Mapping[str, Mapping[str, Any]]) -> int:
    ranked: Sequence[str] = sorted(candidates, key=lambda each: int(candidates[each]["rank"]))
    return int(ranked[0])
