"""Where a kernel of vLLM's own is faster than FlashQLA, by card and length: measured, each with what was measured.

A card that is not in the table, GB10 among them, is one on which nobody has measured it: FlashQLA serves all lengths.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Faster:
    """vLLM's kernel behind the op's ``method`` is faster on cards of compute ``capability`` (90, 121) for batches of
    up to ``tokens`` tokens. ``seen``: on which card, with which versions."""

    capability: int
    method: str
    tokens: int
    seen: str


FASTER = (
    Faster(90, "forward_cuda", 8192, "H200; vLLM 0.25.0, FlashInfer 0.6.13, FlashQLA 0.1.2, 64 and 32 value heads"),
)


def own_is_faster(capability: int, method: str, tokens: int) -> bool:
    return any((row.capability, row.method) == (capability, method) and tokens <= row.tokens for row in FASTER)
