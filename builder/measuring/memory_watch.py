"""The memory of a machine and of a server's container while a model is measured."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from builder import proc_files
from builder.engine import containers
from builder.errors import EngineError
from builder.evidence.record import Figure
from builder.serving import machine_memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from builder.serving.running import ServerMember

_PAUSE_SECONDS = 0.5
# A command in a container costs some ms of processor time, which the server lacks meanwhile.
_CONTAINER_PAUSES = 20
_TIMEOUT = 10.0
# The present size and the largest so far, with version 2 of cgroups and with version 1.
_READING = (
    "cd /sys/fs/cgroup && (cat memory.current memory.peak 2>/dev/null"
    " || cat memory/memory.usage_in_bytes memory/memory.max_usage_in_bytes)"
)
_FEWEST_SAMPLES = 6
_LEAST_GROWTH = 256 << 20
_LEAST_SHARE = 0.05


@dataclass
class MemorySamples:
    """Sizes in bytes as they were read, the first one first: what the machine had available, what the container took,
    and the most that it ever took."""

    available: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    peak: int | None = None

    def figures(self) -> tuple[Figure, ...]:
        figures = []
        if self.available:
            figures.append(Figure("memory_floor", {}, "bytes", "higher", (float(min(self.available)),)))
        if self.peak:
            figures.append(Figure("memory_peak", {}, "bytes", "lower", (float(self.peak),)))
        return tuple(figures)


class MemoryWatch:
    """Reads the memory of a server's machine and container, from entering the context until its end. The machine's is
    read where the engine is here, in ``proc``."""

    def __init__(self, member: ServerMember, proc: Path = machine_memory.PROC) -> None:
        self.samples = MemorySamples()
        self._member = member
        self._proc = proc if member.engine.endpoint.host.startswith("unix://") else None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemorySamples:
        self._thread.start()
        return self.samples

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._read_container()

    def _watch(self) -> None:
        count = 0
        while True:
            if self._proc and (text := proc_files.text(self._proc / proc_files.MEMORY)):
                self.samples.available.append(proc_files.sizes(text).get("MemAvailable", 0))
            if count % _CONTAINER_PAUSES == 0:
                self._read_container()
            count += 1
            if self._stop.wait(_PAUSE_SECONDS):
                return

    def _read_container(self) -> None:
        member = self._member
        try:
            result = containers.execute(member.engine.endpoint, member.service.id, ["sh", "-c", _READING], _TIMEOUT)
        except EngineError:  # it has ended, which the requests tell better
            return
        sizes = [int(word) for word in result.output.split() if word.isdecimal()]
        if len(sizes) == 2 and not result.exit_code:
            self.samples.taken.append(sizes[0])
            self.samples.peak = max(sizes[1], self.samples.peak or 0)


def leak(taken: Sequence[int]) -> int:
    """The bytes by which a server's memory grew, where it went on growing to the end; 0 where it settled. The first
    third of the samples is left out: caches fill then."""
    settled = taken[len(taken) // 3 :]
    if len(taken) < _FEWEST_SAMPLES:
        return 0
    half = len(settled) // 2
    first, last = median(settled[:half]), median(settled[half:])
    growth = settled[-1] - settled[0]
    grows = last > first and settled[-1] >= max(settled) * 0.98
    is_large = growth > max(_LEAST_GROWTH, _LEAST_SHARE * settled[0])
    return growth if grows and is_large else 0
