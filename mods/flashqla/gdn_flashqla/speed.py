"""Which kernel is faster for a batch: FlashQLA or the one that vLLM chose. Both are timed once, on this machine.

Their times depend on the tokens of a batch and on its `spread`: one long sequence among short ones leaves most of a GPU
idle, whatever their number. So batches of both kinds are timed, and others are looked up between them.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

FEWEST_TOKENS = 512
# FlashQLA splits long sequences where the spread is small: by its rules (0.1.2: up to 40 value heads that work at once)
# its time jumps between two of these.
SPREADS = (1, 1.2, 1.4, 1.7, 2, 3, 4, 8, 16, 32)
# Kernels go through a sequence in chunks; a sequence of one token takes the time of one.
CHUNK = 64
# Each batch is timed for so long, or for two calls, with each kernel, in rounds through all batches: the shortest one
# counts.
# On an H100, rounds of a millisecond were too short: waiting for their end made FlashQLA look slower, which starts more
# kernels. Rounds that followed each other at once shared one hiccup.
ROUND_SECONDS = 0.003
ROUNDS = 3
# What decides a kernel's speed, beside the GPU and the shapes.
PACKAGES = ("torch", "triton", "tilelang", "flash-qla", "flashinfer-python")


@dataclass(frozen=True)
class Speeds:
    """The logarithm of FlashQLA's time over that of vLLM's kernel: a row for each of ``tokens`` (ascending), a column
    for each of `SPREADS`. Above 0, vLLM's kernel is faster."""

    tokens: tuple[int, ...]
    ratios: tuple[tuple[float, ...], ...]

    def own_is_faster(self, tokens: int, least: float, most: float) -> bool | None:
        """Whether vLLM's kernel is faster for ``tokens`` with any spread from ``least`` to ``most``; None where the
        spread decides."""
        index, way = _place(self.tokens, tokens)
        rows = zip(self.ratios[index], self.ratios[min(index + 1, len(self.ratios) - 1)], strict=True)
        row = [here + (there - here) * way for here, there in rows]
        first, last = (_place(SPREADS, each) for each in (least, most))
        # Between two points the logarithm is taken for a straight line, so the ends and the points between them decide.
        ends = [row[at] + (row[min(at + 1, len(row) - 1)] - row[at]) * way for at, way in (first, last)]
        answers = {each > 0 for each in (*ends, *row[first[0] + 1 : last[0] + 1])}
        return answers.pop() if len(answers) == 1 else None

    def __str__(self) -> str:
        lines = [("tokens", *(f"x {spread}" for spread in SPREADS))]
        lines += [
            (str(tokens), *(f"{math.exp(each):.2f}" for each in row))
            for tokens, row in zip(self.tokens, self.ratios, strict=True)
        ]
        return "\n".join("".join(f"{cell:>9}" for cell in line) for line in lines)


def _place(points: Sequence[float], at: float) -> tuple[int, float]:
    """The last point that is not above ``at``, and how far ``at`` is on the way to the next one, by their logarithms.
    Outside, the first point or the last one."""
    index = max(0, bisect.bisect_right(points, at) - 1)
    if at <= points[0] or index == len(points) - 1:
        return index, 0.0
    return index, math.log(at / points[index]) / math.log(points[index + 1] / points[index])


def spread(lengths: Sequence[int]) -> float:
    """How many sequences as long as the longest one would be as much work as all of them."""
    chunks = [-(-length // CHUNK) for length in lengths]
    return sum(chunks) / max(*chunks, 1)


def _lengths(tokens: int, spread: float) -> list[int]:
    """Sequences of equal length, and a shorter one where ``spread`` is not whole."""
    longest = round(tokens / spread)
    lengths = [longest] * int(spread)
    rest = tokens - sum(lengths)
    return [*lengths, rest] if spread > int(spread) and rest > 0 else lengths


def measured(
    call: Mapping[str, Any], own: Callable[..., Any], ask: Callable[..., Any], most_tokens: int, cache: Path
) -> Speeds:
    """The speeds for calls like ``call`` of at most ``most_tokens`` tokens, from the file that an earlier start left
    under ``cache``, or timed now and kept there."""
    key = json.dumps([own.__name__, most_tokens, SPREADS, _machine(call), _shape(call)])
    file = cache / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    try:
        kept = json.loads(file.read_text())
        if kept["key"] == key:
            return Speeds(tuple(kept["tokens"]), tuple(map(tuple, kept["ratios"])))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # Not there yet, or not whole: timed again.
    tokens = tuple(_tokens(most_tokens))
    batches = [_lengths(each, spread) for each in tokens for spread in SPREADS]
    rounds = [[_times(call, (ask, own), lengths) for lengths in batches] for _ in range(ROUNDS)]
    logs = [
        math.log(min(ours) / min(owns))
        for ours, owns in (zip(*each, strict=True) for each in zip(*rounds, strict=True))
    ]
    ratios = tuple(tuple(logs[index : index + len(SPREADS)]) for index in range(0, len(logs), len(SPREADS)))
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(json.dumps({"key": key, "tokens": tokens, "ratios": ratios}))
    new.replace(file)
    return Speeds(tokens, ratios)


def _tokens(most: int) -> Iterator[int]:
    doubled = itertools.takewhile(lambda each: each < most, (FEWEST_TOKENS << step for step in itertools.count()))
    return itertools.chain(doubled, [max(most, FEWEST_TOKENS)])


def _machine(call: Mapping[str, Any]) -> list[str]:
    device = call["q"].device
    name = torch.cuda.get_device_name(device) if call["q"].is_cuda else str(device)
    return [name, *(f"{package} {_version(package)}" for package in PACKAGES)]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _shape(call: Mapping[str, Any]) -> list[str]:
    return [f"{call[name].dtype} {list(call[name].shape[2:])}" for name in ("q", "v", "g", "beta", "initial_state")]


def _times(call: Mapping[str, Any], kernels: Sequence[Callable[..., Any]], lengths: Sequence[int]) -> tuple[float, ...]:
    batch = _batch(call, lengths)
    for kernel in kernels:
        kernel(**batch)
    return tuple(_seconds(kernel, batch) for kernel in kernels)


def _seconds(kernel: Callable[..., Any], batch: Mapping[str, Any]) -> float:
    """The seconds that a call takes where calls follow each other, launching them included."""
    _wait(batch)
    began, calls = time.perf_counter(), 0
    while calls < 2 or time.perf_counter() - began < ROUND_SECONDS:
        kernel(**batch)
        calls += 1
    _wait(batch)
    return (time.perf_counter() - began) / calls


def _wait(batch: Mapping[str, Any]) -> None:
    if batch["q"].is_cuda:
        torch.cuda.synchronize(batch["q"].device)


def _batch(call: Mapping[str, Any], lengths: Sequence[int]) -> dict[str, Any]:
    """A call like ``call`` of sequences of these lengths, of noise with a mild gate. What vLLM works out from the
    lengths beforehand is left to its kernel, which remembers it by ``cu_seqlens``."""
    tokens = sum(lengths)
    batch = dict(call) | {name: None for name in ("chunk_indices", "chunk_offsets", "core_attn_out") if name in call}
    for name in ("q", "k", "v"):
        batch[name] = call[name].new_empty(1, tokens, *call[name].shape[2:]).normal_()
    for name, value in (("g", -0.05), ("beta", 0.5)):
        batch[name] = call[name].new_full((1, tokens, *call[name].shape[2:]), value)
    if (initial := call["initial_state"]) is not None:
        batch["initial_state"] = initial.new_zeros(len(lengths), *initial.shape[1:])
    batch["cu_seqlens"] = call["cu_seqlens"].new_tensor([0, *itertools.accumulate(lengths)])
    return batch
