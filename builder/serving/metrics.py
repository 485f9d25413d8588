"""The metrics of a running server, from the text that vLLM gives at ``/metrics``.

Their names: https://docs.vllm.ai/en/stable/design/metrics.html; the format of the text:
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerMetrics:
    """The requests that a server handles now, and its tokens since it started. ``cache_used`` is a share of 1;
    ``drafted`` are the tokens that a speculative decoder proposed, ``accepted`` those of them that the model took."""

    running: int
    waiting: int
    prompt_tokens: int
    generated_tokens: int
    drafted: int
    accepted: int
    cache_used: float

    @property
    def acceptance(self) -> float | None:
        """The share of the drafted tokens that was accepted, of 1; None if none were drafted."""
        return self.accepted / self.drafted if self.drafted else None


def read(text: str) -> ServerMetrics | None:
    """Reads the metrics from the text; returns None if it is not vLLM's."""
    sums = totals(text)
    if "vllm:num_requests_running" not in sums:
        return None
    return ServerMetrics(
        running=_count(sums["vllm:num_requests_running"]),
        waiting=_count(sums["vllm:num_requests_waiting"]),
        prompt_tokens=_count(sums["vllm:prompt_tokens_total"]),
        generated_tokens=_count(sums["vllm:generation_tokens_total"]),
        drafted=_count(sums["vllm:spec_decode_num_draft_tokens_total"]),
        accepted=_count(sums["vllm:spec_decode_num_accepted_tokens_total"]),
        cache_used=sums["vllm:kv_cache_usage_perc"],
    )


def totals(text: str) -> defaultdict[str, float]:
    """The samples of vLLM in the text by their names; each of several engines has one of its own, and they are added
    up. 0 for a name that is not there."""
    sums: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if line.startswith("vllm:"):
            name, value = _sample(line)
            sums[name] += value
    return sums


def _count(value: float) -> int:
    """``value`` as a count; 0 for what is no number, which the format allows."""
    return int(value) if math.isfinite(value) else 0


def _sample(line: str) -> tuple[str, float]:
    """Parses ``NAME{LABEL="…"} VALUE`` or ``NAME VALUE``. A label may hold blanks and braces: the value is what follows
    the last one."""
    name = line.partition(" ")[0].partition("{")[0]
    value = (line.rpartition("}")[2] if "}" in line else line.partition(" ")[2]).split()
    try:
        return name, float(value[0])
    except (IndexError, ValueError):
        return name, 0.0
