"""FlashQLA's numbers against a recurrence in float32, its compile times, and its speed beside vLLM's own kernels."""

from __future__ import annotations

import functools
import itertools
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
import triton
from part_results import Results
from vllm.model_executor.layers.mamba.gdn_flashqla import hook

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS = ((16, 64), (16, 32))
SIZE = 128
MOST_TOKENS = 16384
LENGTHS = ((1,), (63,), (64,), (65,), (2048,), (8192,), (5, 64, 300), (1, 1, 1, 700), (4096, 64, 64), (512,) * 8)
GATES = {"none": 0.0, "mild": 0.05, "strong": 3.0}
# Ten times what both kernels were off on an H200, where they differ from the recurrence by 2.4e-3 to 4.5e-3.
TOLERANCE = 1e-2
STALL = 1.0  # seconds: a call that takes longer has compiled
TIMED = (64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
SEQUENCES = (1, 4, 16)


def inputs(heads: tuple[int, int], lengths: tuple[int, ...], gate: float = 0.05) -> dict[str, Any]:
    """What vLLM passes for sequences of these ``lengths``."""
    keys, values = heads
    tokens, device = sum(lengths), "cuda"

    def normal(count: int) -> torch.Tensor:
        return torch.randn(1, tokens, count, SIZE, device=device)

    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return {
        "q": torch.nn.functional.normalize(normal(keys), dim=-1).bfloat16(),
        "k": torch.nn.functional.normalize(normal(keys), dim=-1).bfloat16(),
        "v": normal(values).bfloat16(),
        "g": -gate * torch.rand(1, tokens, values, device=device),
        "beta": torch.rand(1, tokens, values, device=device),
        "initial_state": torch.randn(len(lengths), values, SIZE, SIZE, device=device),
        "output_final_state": True,
        "cu_seqlens": ends.to(device),
        "use_qk_l2norm_in_kernel": False,
    }


def recurrence(call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule, a token at a time, in float32."""
    share = call["v"].shape[2] // call["k"].shape[2]
    q, k = (call[name][0].float().repeat_interleave(share, dim=1) for name in ("q", "k"))
    v, decay, beta = call["v"][0].float(), call["g"][0].exp(), call["beta"][0]
    output, states = torch.empty_like(v), call["initial_state"].clone()
    ends = call["cu_seqlens"].tolist()
    for number, (begin, end) in enumerate(itertools.pairwise(ends)):
        state = states[number]
        for at in range(begin, end):
            state.mul_(decay[at][:, None, None])
            change = beta[at][:, None] * (v[at] - torch.einsum("hvk,hk->hv", state, k[at]))
            state.add_(change[:, :, None] * k[at][:, None, :])
            output[at] = torch.einsum("hvk,hk->hv", state, q[at]) * SIZE**-0.5
    return output[None], states


def distance(answer: torch.Tensor, reference: torch.Tensor) -> float:
    return float((answer.float() - reference).norm() / reference.norm())


def own_kernels() -> dict[str, Callable[..., Any]]:
    """vLLM's own kernels that this card can run, by the name of the op's method."""
    try:
        from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as gdn
    except ModuleNotFoundError:  # before vLLM 0.22
        from vllm.model_executor.layers.mamba import gdn_linear_attn as gdn
    return {"forward_native": gdn.fla_chunk_gated_delta_rule, "forward_cuda": gdn.fi_chunk_gated_delta_rule}


def compiled(results: Results, kernel: hook.Kernel, heads: tuple[int, int]) -> None:
    """What compiling takes while vLLM warms up, and whether any batch compiles after it."""
    at: dict[str, int | str] = {"key_heads": heads[0], "value_heads": heads[1]}
    began = time.monotonic()
    hook.prepare(kernel, inputs(heads, (64,)), MOST_TOKENS, None)
    results.figure("compile", at, "s", "lower", time.monotonic() - began)
    chance = random.Random(0)  # noqa: S311  (lengths)
    slowest = 0.0
    for _ in range(60):
        count = chance.choice((1, 1, 2, 3, 4, 6, 8, 16))
        lengths = tuple(max(1, int(2 ** chance.uniform(0, 14) / count)) for _ in range(count))
        call = inputs(heads, lengths)
        torch.cuda.synchronize()
        began = time.monotonic()
        hook.ask(kernel, call)
        torch.cuda.synchronize()
        slowest = max(slowest, time.monotonic() - began)
    results.figure("slowest_call_after_warmup", at, "s", "lower", slowest)
    results.check("compiled while vLLM warms up", f"{heads}", slowest < STALL, f"a batch took {slowest:.1f} s")


def right(results: Results, kernel: hook.Kernel, heads: tuple[int, int]) -> None:
    """The largest distance from the recurrence, of FlashQLA and of Triton, and whether repetitions are bit for bit."""
    worst = {"FlashQLA": 0.0, "Triton": 0.0}
    for lengths in LENGTHS:
        for name, gate in GATES.items():
            call = inputs(heads, lengths, gate)
            reference, states = recurrence(call)
            answers = {"FlashQLA": hook.ask(kernel, call), "Triton": own_kernels()["forward_native"](**call)}
            for who, (output, state) in answers.items():
                off = max(distance(output, reference), distance(state, states))
                worst[who] = max(worst[who], off)
                results.check("numbers", f"{who} {heads} {lengths} {name}", off < TOLERANCE, f"off by {off:.2e}")
            again = hook.ask(kernel, call)
            same = all(torch.equal(one, other) for one, other in zip(again, answers["FlashQLA"], strict=True))
            results.check("repetition", f"{heads} {lengths} {name}", same, "other bits")
    for who, off in worst.items():
        results.figure("relative_error", {"kernel": who, "value_heads": heads[1]}, "ratio", "lower", off)


def speed(results: Results, kernel: hook.Kernel, heads: tuple[int, int], who: str) -> None:
    for tokens in TIMED:
        for count in SEQUENCES:
            if tokens // count < 64:
                continue
            call = inputs(heads, (tokens // count,) * count)
            run = (
                functools.partial(hook.ask, kernel, call)
                if who == "FlashQLA"
                else functools.partial(own_kernels()[who], **call)
            )
            try:
                run()
            except Exception as error:  # noqa: BLE001  (a kernel that this card has not may raise anything)
                results.left_out("speed", f"{who} {heads}", f"{type(error).__name__}: {error}"[:300])
                return
            times = triton.testing.do_bench(run, warmup=3, rep=20, return_mode="all")
            at: dict[str, int | str] = {"kernel": who, "value_heads": heads[1], "tokens": tokens, "sequences": count}
            results.figure("prefill", at, "ms", "lower", statistics.median(times))


def main(*value_heads: str) -> int:
    """Of the heads in HEADS, those with so many value heads; of all where none are named."""
    chosen = [heads for heads in HEADS if not value_heads or str(heads[1]) in value_heads]
    results = Results()
    torch.manual_seed(0)
    kernel = hook.flash_qla()
    if isinstance(kernel, str):
        results.check("FlashQLA serves", "this card", False, kernel)
        return 0
    for heads in chosen:
        compiled(results, kernel, heads)
    for heads in chosen:
        right(results, kernel, heads)
    # FlashInfer last: it compiles for minutes.
    for who in ("FlashQLA", *own_kernels()):
        for heads in chosen:
            speed(results, kernel, heads, who)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
