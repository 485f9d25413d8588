"""The acceptance of drafted tokens over fixed prompts at temperature 0, which alone makes it a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.evidence.record import Figure, Finding
from builder.http_client import NoAnswerError
from builder.measuring import counters, served_model
from builder.measuring.counters import UnreadableCountersError

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.measuring.served_model import ServedModel

PROMPTS = (
    "Explain to a child why the sea is salty. Use about a hundred words.",
    "Write a Python function that merges two sorted lists, and then its test.",
    "List the planets from the sun outwards, one a line, with a remark on each.",
    "Continue this table with ten more rows:\n| n | n squared |\n|---|---|\n| 1 | 1 |\n| 2 | 4 |",
    "Translate into French: The ferry leaves at nine, and whoever is late waits for the evening.",
    'Give a JSON array of five objects with the keys "city", "country" and "river".',
)
TOKENS = 192
_SECONDS = 300.0


def measure(served: ServedModel, progress: Callable[[float], None]) -> tuple[tuple[Figure, ...], tuple[Finding, ...]]:
    """The figures of a server that drafts, and none of another; where its counters cannot be read that is a finding.
    ``progress`` takes the share that is done."""
    try:
        before = counters.read(served)
        if not counters.drafts(before):
            return (), ()
        for number, prompt in enumerate(PROMPTS):
            progress(number / len(PROMPTS))
            body = {
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": TOKENS,
                "temperature": 0,
                "seed": 0,
            }
            served_model.complete(served, body, _SECONDS)
        accepted = counters.acceptance(before, counters.read(served))
    except UnreadableCountersError as error:
        return (), (Finding("acceptance", "", "unclear", str(error)),)
    except NoAnswerError as error:
        return (), (Finding("acceptance", "", "fail", str(error)),)
    if accepted is None:
        return (), ()
    figures = (
        Figure("acceptance", {}, "ratio", "higher", (accepted.rate,)),
        Figure("acceptance_length", {}, "tokens", "higher", (accepted.length,)),
    )
    return figures, ()
