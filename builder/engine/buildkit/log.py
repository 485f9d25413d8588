"""The whole output of a build as text, in the form of ``--progress=plain``: every line has its step's number."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from builder.engine.buildkit.memory import StepMemory
from builder.engine.buildkit.progress import Event, StepFinished, StepOutput, StepStarted
from builder.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Iterable

TAIL = 15


@dataclass
class BuildLog:
    """A build's log file, written as events come, the last ``TAIL`` lines of every step, and its memory."""

    file: TextIO
    _numbers: dict[str, int] = field(default_factory=dict)
    _unfinished: dict[str, str] = field(default_factory=dict)
    _tails: dict[str, deque[str]] = field(default_factory=dict)
    _ends: dict[str, str] = field(default_factory=dict)
    _memory: dict[str, StepMemory] = field(default_factory=dict)

    def write(self, event: Event) -> None:
        """Appends the lines of an event."""
        number = self._numbers.setdefault(event.step, len(self._numbers) + 1)
        match event:
            case StepStarted():
                self._lines(number, [event.name])
            case StepOutput():
                self._output(number, event)
            case StepFinished():
                if unfinished := self._unfinished.pop(event.step, ""):
                    self._append(number, event.step, [unfinished])
                # An internal step may end more than once: only a change is worth a line.
                if self._ends.get(event.step) != (end := _end(event)):
                    self._ends[event.step] = end
                    self._lines(number, [end])
            case _:
                return
        # A build may be killed at any time, and its log then has to be complete.
        self.file.flush()

    def write_line(self, line: str) -> None:
        """Appends a line that belongs to no step, such as buildx's own message at the end."""
        self.file.write(redacted(line.rstrip("\n")) + "\n")
        self.file.flush()

    def tail(self, step: str) -> list[str]:
        """Returns the last lines that a step wrote."""
        return [*self._tails.get(step, ()), *filter(None, [redacted(self._unfinished.get(step, ""))])]

    def memory(self, step: str) -> StepMemory:
        """Returns what the output of a step tells of its memory."""
        return self._memory.get(step, StepMemory())

    @property
    def compiled(self) -> tuple[StepMemory, ...]:
        """The memory of the steps that compiled a source and measured it."""
        return tuple(memory for memory in self._memory.values() if memory.mib)

    def _output(self, number: int, event: StepOutput) -> None:
        *lines, self._unfinished[event.step] = (self._unfinished.get(event.step, "") + event.text).split("\n")
        self._append(number, event.step, lines)

    def _append(self, number: int, step: str, lines: Iterable[str]) -> None:
        # A progress bar redraws its line after \r: only its last state is kept.
        shown = [redacted(line.rstrip("\r").rpartition("\r")[2]) for line in lines]
        for line in shown:
            self._memory[step] = self.memory(step).after(line)
        self._tails.setdefault(step, deque(maxlen=TAIL)).extend(shown)
        self._lines(number, shown)

    def _lines(self, number: int, lines: Iterable[str]) -> None:
        self.file.writelines(f"#{number} {redacted(line)}\n" for text in lines for line in text.split("\n"))


def _end(event: StepFinished) -> str:
    if event.error:
        return f"ERROR after {event.seconds:.1f}s: {event.error}"
    return "CACHED" if event.cached else f"DONE {event.seconds:.1f}s"
