"""What a server that starts is doing, told from the lines that vLLM logs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

READY = "ready"

# What vLLM 0.19 to 0.32 write, in the order in which a start goes through them (v1/worker/gpu_model_runner.py,
# v1/engine/core.py, model_executor/model_loader/, compilation/, model_executor/warmup/); uvicorn writes the last.
_PHASES = (
    (r"Fetching \d+ files|Downloading", "downloading the model"),
    (r"Starting to load model|Loading weights|[Ll]oading safetensors|checkpoint shards", "loading weights"),
    (r"torch\.compile|Dynamo bytecode|[Cc]ompil(e|ing) (a graph|and warming)|Cache the graph", "compiling"),
    (r"[Aa]utotun(e|ing)|Warming up|warmup starting|Initial profiling|Model loading took", "warming up"),
    (r"Capturing CUDA graphs|CUDA graph capture|Profiling CUDA graph", "capturing graphs"),
    (r"Graph capturing finished|init engine|Starting vLLM (API )?server|Waiting for application", "starting to answer"),
    (r"Application startup complete", READY),
)
_LOOKS = tuple((re.compile(pattern), name) for pattern, name in _PHASES)
_SHARE = re.compile(r"(\d{1,3})% Completed|\s(\d{1,3})%\|")
# The last word of the process that serves, when the one that computes has said why before.
_NO_CAUSE = "Engine core initialization failed"
_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception): \S.*")


@dataclass(frozen=True)
class Phase:
    """A phase by its name; ``share`` is how much of it is done, in percent, where the log says so."""

    name: str
    percent: int | None = None

    def __str__(self) -> str:
        return self.name if self.percent is None else f"{self.name}, {self.percent} %"


def of_line(line: str) -> Phase | None:
    """The phase that a line of the log tells of; None where it tells of none."""
    # A progress bar redraws its line after \r: what counts is how it stands now.
    last = line.rpartition("\r")[2]
    name = next((name for look, name in _LOOKS if look.search(last)), None)
    if name is None:
        return None
    share = _SHARE.search(last)
    return Phase(name, int(share[1] or share[2]) if share else None)


def latest(lines: Iterable[str]) -> Phase | None:
    """The phase after these lines; None where they tell of none."""
    return next((phase for line in reversed(list(lines)) if (phase := of_line(line))), None)


def cause(lines: Iterable[str]) -> str:
    """The last error that Python names in these lines; empty where there is none."""
    found = (match[0] for line in reversed(list(lines)) if (match := _ERROR.search(line)))
    return next((said for said in found if _NO_CAUSE not in said), "")
