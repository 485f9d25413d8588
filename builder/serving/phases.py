"""The phases of a server's start, recognised in the lines that vLLM logs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.events import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

READY = "ready"

# Log lines of vLLM 0.19 to 0.32, in the order of a start (v1/worker/gpu_model_runner.py, v1/engine/core.py,
# model_executor/model_loader/, compilation/, model_executor/warmup/); uvicorn writes the last.
_PHASES = (
    (r"Fetching \d+ files|Downloading", "downloading the model"),
    (r"Starting to load model|Loading weights|[Ll]oading safetensors|checkpoint shards", "loading weights"),
    (r"torch\.compile|Dynamo bytecode|[Cc]ompil(e|ing) (a graph|and warming)|Cache the graph", "compiling"),
    (r"[Aa]utotun(e|ing)|Warming up|warmup starting|Initial profiling|Model loading took", "warming up"),
    (r"Capturing CUDA graphs|CUDA graph capture|Profiling CUDA graph", "capturing graphs"),
    (r"Graph capturing finished|init engine|Starting vLLM (API )?server|Waiting for application", "starting to answer"),
    (r"Application startup complete", READY),
)
_PATTERNS = tuple((re.compile(pattern), name) for pattern, name in _PHASES)
_PERCENT = re.compile(r"(\d{1,3})% Completed|\s(\d{1,3})%\|")
# Lines that speak of a phase and are none of it: dumps of the configuration, and what is left out.
_SETTINGS = re.compile(r"with config:|non-default args|engine args|\w+_config=|'\w+': [^']*,? '\w+': ")
_LEFT_OUT = re.compile(
    r"\b(?:disable[sd]?|disabling|skip(?:ped|ping|s)?|not supported|turned off|without)\b", re.IGNORECASE
)
# A profiler that is off while graphs are captured says so by the same word.
_CAN_BE_LEFT_OUT = frozenset({"compiling", "warming up"})


@dataclass(frozen=True)
class Phase(Stage):
    """A phase; ``percent`` is how much of it is done, if the log says so."""

    percent: int | None = None

    def __str__(self) -> str:
        return self.name if self.percent is None else f"{self.name}, {self.percent} %"


def of_line(line: str) -> Phase | None:
    """Returns the phase that a line of the log belongs to; None if it shows none."""
    # A progress bar redraws its line after \r: only its last state counts.
    last = line.rpartition("\r")[2]
    name = next((name for pattern, name in _PATTERNS if pattern.search(last)), None)
    if name is None or _SETTINGS.search(last) or (name in _CAN_BE_LEFT_OUT and _LEFT_OUT.search(last)):
        return None
    percent = _PERCENT.search(last)
    return Phase(name, int(percent[1] or percent[2]) if percent else None)


def latest(lines: Iterable[str]) -> Phase | None:
    """Returns the last phase in these lines; None if they show none."""
    return next((phase for line in reversed(list(lines)) if (phase := of_line(line))), None)
