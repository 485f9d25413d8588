"""The counters of a server before and after a measurement, and the acceptance of drafted tokens between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.http_client import NoAnswerError
from builder.measuring import served_model
from builder.serving import metrics

if TYPE_CHECKING:
    from builder.measuring.served_model import ServedModel

_TOKENS = "vllm:generation_tokens_total"
_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_COUNTERS = (_TOKENS, _DRAFTS, _DRAFTED, _ACCEPTED)


class UnreadableCountersError(Exception):
    """A page of metrics that is not whole, or two that do not go together; the text says why."""


@dataclass(frozen=True)
class Acceptance:
    """The acceptance of drafted tokens: ``rate`` is the accepted share of them, ``length`` the tokens of a step."""

    rate: float
    length: float


def read(served: ServedModel) -> Mapping[str, float]:
    """The counters now. Raises UnreadableCountersError where the page does not come, or not whole."""
    try:
        text = served_model.get(f"{served.root}/metrics", key=served.key)
    except NoAnswerError as error:
        raise UnreadableCountersError(f"/metrics: {error}") from None
    return parse(text)


def parse(text: str) -> Mapping[str, float]:
    """The counters in a page of metrics. Raises UnreadableCountersError where it was cut off, or is not vLLM's."""
    sums = metrics.totals(text)
    if not text.endswith("\n") or _TOKENS not in sums:
        raise UnreadableCountersError("/metrics: the page is not whole, or is not vLLM's")
    counters = {name: sums[name] for name in _COUNTERS if name in sums}
    if not all(math.isfinite(value) and value >= 0 for value in counters.values()):
        raise UnreadableCountersError("/metrics: a counter is no number")
    return counters


def acceptance(before: Mapping[str, float], after: Mapping[str, float]) -> Acceptance | None:
    """The acceptance between two readings; None where nothing was drafted. Raises UnreadableCountersError where the
    server was started anew between them, or a page lacks a part."""
    if before.keys() != after.keys():
        raise UnreadableCountersError("/metrics: two pages of one server have different counters")
    grown = {name: after[name] - before[name] for name in before}
    if any(value < 0 for value in grown.values()):
        raise UnreadableCountersError("/metrics: a counter went back, so the server was started anew meanwhile")
    drafts, drafted, accepted = (grown.get(name, 0.0) for name in (_DRAFTS, _DRAFTED, _ACCEPTED))
    if not drafted or not drafts:
        return None
    if accepted > drafted:
        raise UnreadableCountersError("/metrics: more tokens were accepted than drafted")
    return Acceptance(accepted / drafted, 1 + accepted / drafts)


def drafts(counters: Mapping[str, float]) -> bool:
    """True of a server with a speculative decoder."""
    return _DRAFTED in counters
