"""The batches in which FlashQLA compiles all that serving can ask for, while vLLM warms up.

TileLang compiles a kernel for the heads and types, and for two choices that FlashQLA makes by the lengths in a batch:
how wide a block is, which depends on how many of them there are for the GPU, and whether long sequences are split. vLLM
warms up with one sequence of 64 tokens; the first batch of several, or of a long one, then compiled for 20 s more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

SHORTEST = 64
# As many blocks as these fill any GPU: with more sequences than that, no other kernel is taken.
BLOCKS = 256


def shape_of(call: Mapping[str, Any]) -> tuple[Any, ...]:
    """All that kernels are compiled for, but for the lengths."""
    tensors = (call[name] for name in ("q", "k", "v", "g", "beta", "initial_state", "cu_seqlens"))
    kinds = tuple((each.dtype, each.shape[2:] if each.dim() > 2 else None) for each in tensors if each is not None)
    return (*kinds, call["output_final_state"], call["use_qk_l2norm_in_kernel"])


def calls(call: Mapping[str, Any], most_tokens: int) -> Iterator[dict[str, Any]]:
    """Calls like ``call`` with other lengths, on tensors of zeros. A batch without lengths has no others."""
    if call["cu_seqlens"] is None:
        yield dict(call)
        return
    batches = list(lengths(max(1, -(-BLOCKS // call["v"].shape[2])), max(most_tokens, SHORTEST)))
    tokens, sequences = max(map(sum, batches)), max(map(len, batches))
    zeros = {name: call[name].new_zeros(1, tokens, *call[name].shape[2:]) for name in ("q", "k", "v", "g", "beta")}
    initial = call["initial_state"]
    states = None if initial is None else initial.new_zeros(sequences, *initial.shape[1:])
    for batch in batches:
        ends = torch.tensor([0, *batch], dtype=call["cu_seqlens"].dtype).cumsum(0, dtype=call["cu_seqlens"].dtype)
        yield {
            **call,
            **{name: each[:, : sum(batch)] for name, each in zeros.items()},
            "initial_state": None if states is None else states[: len(batch)],
            "cu_seqlens": ends.to(call["cu_seqlens"].device),
            "core_attn_out": None,
        }


def lengths(most_sequences: int, most_tokens: int) -> Iterator[list[int]]:
    """Batches in steps of two: of equal sequences, and of a long one with short ones, up to the largest there is."""
    sequences = 1
    while sequences < 2 * most_sequences:
        short = [SHORTEST] * (sequences - 1)
        longest = most_tokens - sum(short)
        long = SHORTEST
        while long <= longest:
            yield [long, *short]
            if short and long > SHORTEST and long * sequences <= most_tokens:
                yield [long] * sequences
            long *= 2
        if long // 2 < longest:
            yield [longest, *short]
        sequences *= 2
