"""Figures that a server tells in its log, in lines of vLLM 0.19 to 0.32."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from builder.evidence.record import Figure
from builder.serving import phases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.engine.services import LogLine
    from builder.evidence.record import Better

_GIB = 1 << 30
# v1/core/kv_cache_utils.py, v1/worker/gpu_model_runner.py, v1/worker/gpu_worker.py
_LINES: tuple[tuple[str, str, str, Better, float], ...] = (
    ("kv_tokens", r"KV cache size: ([\d,]+) tokens", "tokens", "higher", 1),
    ("model_memory", r"Model loading took ([\d.]+) Gi?B", "bytes", "lower", _GIB),
    ("model_loading", r"Model loading took .*? ([\d.]+) seconds", "s", "lower", 1),
    ("kv_memory", r"Available KV cache memory: ([\d.]+) GiB", "bytes", "higher", _GIB),
    ("graph_capture", r"Graph capturing finished in ([\d.]+) secs", "s", "lower", 1),
)
_LONGEST_START = 24 * 3600.0


def figures(lines: Sequence[LogLine], started: str) -> tuple[Figure, ...]:
    """The figures in the log of a container that was ``started`` (RFC 3339, by the engine's clock as the lines)."""
    lines = [line for line in lines if line.written >= started]
    result = []
    for name, pattern, unit, better, factor in _LINES:
        matches = (match for line in lines if (match := re.search(pattern, line.text)))
        if match := next(matches, None):
            text = match[1].replace(",", "").rstrip(".")
            result.append(Figure(name, {}, unit, better, (float(text) * factor,)))
    seconds = _startup(lines, started)
    return (*result, *([Figure("startup", {}, "s", "lower", (seconds,))] if seconds is not None else []))


def _startup(lines: Sequence[LogLine], started: str) -> float | None:
    """The seconds until it answered; None where the log does not tell, or the clock jumped meanwhile."""
    for line in lines:
        phase = phases.of_line(line.text)
        if phase and phase.name == phases.READY:
            try:
                passed = (datetime.fromisoformat(line.written) - datetime.fromisoformat(started)).total_seconds()
            except ValueError:
                return None
            return passed if 0 < passed < _LONGEST_START else None
    return None
