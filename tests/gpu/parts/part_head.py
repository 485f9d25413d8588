"""The INT8 head: its error and its speed beside the BF16 head that it is made of."""

from __future__ import annotations

import functools
import statistics

import torch
import triton
from part_results import Results
from vllm.model_executor.layers.int8_lm_head import kernel, reference

# Qwen3.5-122B, and a vocabulary that fills no block.
SIZES = ((248320, 3072), (151643, 2560))
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CHUNK = 16384  # rows
# Twice what rounding to BF16 costs.
TOLERANCE = 3.4e-3


def right(results: Results, weight: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor) -> None:
    """How far the kernel is from its rows, and the rows from the weight they were made of."""
    at: dict[str, int | str] = {"vocabulary": weight.shape[0], "hidden": weight.shape[1]}
    by_rows, by_weight, same = 0.0, 0.0, 0
    for batch in BATCHES:
        hidden = torch.randn(batch, weight.shape[1], device="cuda").bfloat16()
        answer = kernel.logits(hidden, rows, scales)
        exact = exactly(hidden, weight)
        off = distance(answer, exactly(hidden, rows) * scales.double())
        results.check("INT8 head", f"{tuple(weight.shape)} {batch}", off < TOLERANCE, f"off by {off:.2e}")
        again = kernel.logits(hidden, rows, scales)
        results.check("INT8 head", f"{tuple(weight.shape)} {batch} again", torch.equal(answer, again), "other bits")
        by_rows, by_weight = max(by_rows, off), max(by_weight, distance(answer, exact))
        same += int((answer.argmax(1) == exact.argmax(1)).sum())
    results.figure("int8_head_error", {**at, "against": "its rows"}, "ratio", "lower", by_rows)
    results.figure("int8_head_error", {**at, "against": "the weight"}, "ratio", "lower", by_weight)
    results.figure("int8_head_top_1", at, "ratio", "higher", same / sum(BATCHES))


def exactly(hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The logits in float64; not all rows at once, which are 6 GB then."""
    return torch.cat([hidden.double() @ part.double().T for part in rows.split(CHUNK)], dim=1)


def distance(answer: torch.Tensor, exact: torch.Tensor) -> float:
    return float((answer.double() - exact).norm() / exact.norm())


def speed(results: Results, weight: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor) -> None:
    for batch in BATCHES:
        hidden = torch.randn(batch, weight.shape[1], device="cuda").bfloat16()
        for who, run in (
            ("INT8", functools.partial(kernel.logits, hidden, rows, scales)),
            ("BF16", functools.partial(torch.nn.functional.linear, hidden, weight)),
        ):
            times = triton.testing.do_bench(run, warmup=5, rep=25, return_mode="all")
            at: dict[str, int | str] = {"head": who, "vocabulary": weight.shape[0], "batch": batch}
            results.figure("logits", at, "ms", "lower", statistics.median(times))


def main() -> int:
    results = Results()
    torch.manual_seed(0)
    for vocabulary, hidden in SIZES:
        weight = torch.randn(vocabulary, hidden, device="cuda", dtype=torch.bfloat16) * 0.02
        rows, scales = reference.quantise(weight)
        right(results, weight, rows, scales)
        speed(results, weight, rows, scales)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
