"""The numbers of a running server, from what vLLM says at ``/metrics``.

Its names: https://docs.vllm.ai/en/stable/design/metrics.html; the form of the text:
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerMetrics:
    """What a server has done since it started, and does now. ``cache_used`` is a share of 1; ``drafted`` and
    ``accepted`` are tokens that a speculative decoder proposed, and those of them that the model took."""

    running: int
    waiting: int
    prompt_tokens: int
    generated_tokens: int
    drafted: int
    accepted: int
    cache_used: float

    @property
    def acceptance(self) -> float | None:
        """The share of the drafted tokens that was accepted, of 1; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


def read(text: str) -> ServerMetrics | None:
    """The numbers in the text; None where it is not vLLM's."""
    sums: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if line.startswith("vllm:"):
            name, value = _sample(line)
            # One engine of several has a line of its own.
            sums[name] += value
    if "vllm:num_requests_running" not in sums:
        return None
    return ServerMetrics(
        running=int(sums["vllm:num_requests_running"]),
        waiting=int(sums["vllm:num_requests_waiting"]),
        prompt_tokens=int(sums["vllm:prompt_tokens_total"]),
        generated_tokens=int(sums["vllm:generation_tokens_total"]),
        drafted=int(sums["vllm:spec_decode_num_draft_tokens_total"]),
        accepted=int(sums["vllm:spec_decode_num_accepted_tokens_total"]),
        cache_used=sums["vllm:kv_cache_usage_perc"],
    )


def _sample(line: str) -> tuple[str, float]:
    """``NAME{LABEL="…"} VALUE``; a label may hold blanks and braces, so the value is what follows the last of them."""
    name = line.partition(" ")[0].partition("{")[0]
    value = (line.rpartition("}")[2] or line.partition(" ")[2]).split()
    try:
        return name, float(value[0])
    except (IndexError, ValueError):
        return name, 0.0
