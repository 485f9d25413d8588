"""The likeness of two models on the same texts: the change of perplexity, and how often both would choose the same next
token. Pure: the scores were taken before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.measuring.token_scores import TokenScore

CONFIDENCE = 0.99
_FEWEST = 2


@dataclass(frozen=True)
class Likeness:
    """The second model against the first over so many ``tokens``. ``change`` is that of the perplexity as a share of
    the first's (0.01: a hundredth more), which lies between ``low`` and ``high`` with `CONFIDENCE`, as far as tokens
    are independent of each other; ``agreement`` is the share of places at which both hold the same token for
    likeliest."""

    tokens: int
    perplexities: tuple[float, float]
    change: float
    low: float
    high: float
    agreement: float

    def verdict(self, most_loss: float) -> Literal["pass", "fail", "unclear"]:
        """The verdict if the second may be worse by the share ``most_loss``: unclear where the band holds that."""
        return "pass" if self.high <= most_loss else "fail" if self.low > most_loss else "unclear"


def compare(first: Sequence[TokenScore], second: Sequence[TokenScore]) -> Likeness:
    """Compares the scores of the same tokens in the same order, the second against the first. Raises ValueError where
    they are others, or too few."""
    if [score.token for score in first] != [score.token for score in second]:
        raise ValueError("the two make other tokens of the same texts")
    count = len(first)
    if count < _FEWEST:
        raise ValueError(f"{count} tokens tell nothing")
    pairs = list(zip(first, second, strict=True))
    losses = [a.log_probability - b.log_probability for a, b in pairs]
    mean = math.fsum(losses) / count
    variance = math.fsum((loss - mean) ** 2 for loss in losses) / (count - 1)
    half = _half_width() * math.sqrt(variance / count)
    same = sum(a.likeliest == b.likeliest for a, b in pairs)
    change, low, high = map(_growth, (mean, mean - half, mean + half))
    return Likeness(count, (_perplexity(first), _perplexity(second)), change, low, high, same / count)


def _half_width() -> float:
    """Of the band, in standard errors."""
    from statistics import NormalDist

    return NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def _perplexity(scores: Sequence[TokenScore]) -> float:
    return 1 + _growth(-math.fsum(score.log_probability for score in scores) / len(scores))


def _growth(logarithm: float) -> float:
    # vLLM writes -9999 for the logarithm of nothing: the exponential of that is no number that JSON has.
    return math.expm1(min(logarithm, 70.0))
