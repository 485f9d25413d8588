"""BuildKit's raw JSON progress, as events.

``docker buildx … --progress=rawjson`` writes one object a line: ``vertexes`` (a step began, ended, was cached or
failed), ``statuses`` (progress within a step) and ``logs`` (output, base64). The same vertex comes many times, and some
start and end more than once; `BuildProgress` keeps the state that tells a change from a repetition. The format is the
client's SolveStatus: https://pkg.go.dev/github.com/moby/buildkit/client#SolveStatus
"""

from __future__ import annotations

import codecs
import re
from base64 import b64decode
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What BuildKit does for itself; with several targets their names come first: `[tf5 internal] load .dockerignore`.
_INTERNAL = re.compile(r"\[(\S+ )?internal\]|\[(\S+ )?context [^]]*\]|\[auth\]|resolving provenance")
# A step written as a here-document is called by its first line, which the templates make a comment that names it.
_NAMED = re.compile(r"\(# (.*?)(\.\.\.)?\)$")
_POSITION = re.compile(r"^\[((?:[^\] ]+ )*?)(?:stage-\d+ )?((?:[^\] ]+ )?\d+/\d+)\] ")
_EXIT_CODE = re.compile(r"exit code: (\d+)")


@dataclass(frozen=True)
class StepStarted:
    """A step began. ``step`` is BuildKit's digest for it, ``name`` what BuildKit shows: ``[2/3] RUN make``."""

    step: str
    name: str

    @property
    def internal(self) -> bool:
        """Whether BuildKit does it for itself, so that a person need not see it."""
        return is_internal(self.name)


@dataclass(frozen=True)
class StepFinished:
    """A step ended after ``seconds``; ``error`` is empty unless it failed or was cancelled.

    A few internal steps end more than once: the last counts.
    """

    step: str
    name: str
    cached: bool
    seconds: float
    error: str = ""

    @property
    def internal(self) -> bool:
        """Whether BuildKit does it for itself, so that a person need not see it."""
        return is_internal(self.name)


@dataclass(frozen=True)
class StepOutput:
    """A piece of a step's output, as it came: not always whole lines."""

    step: str
    text: str


@dataclass(frozen=True)
class StepProgress:
    """How far a part of a step is (``what``: a layer, ``exporting layers``), in bytes; ``total`` 0 where not known."""

    step: str
    what: str
    current: int
    total: int
    done: bool


Event = StepStarted | StepFinished | StepOutput | StepProgress


@dataclass(frozen=True)
class BuildStep:
    """What is known of a step in the end; ``seconds`` is 0 for one that was cached or never ended."""

    name: str
    cached: bool = False
    seconds: float = 0.0
    error: str = ""

    @property
    def internal(self) -> bool:
        """Whether BuildKit does it for itself, so that a person need not see it."""
        return is_internal(self.name)

    @property
    def cancelled(self) -> bool:
        """Whether it ended only because another step failed or somebody stopped the build."""
        return "context canceled" in self.error

    @property
    def exit_code(self) -> int | None:
        """The exit code of the step's command, where that is why it failed."""
        found = _EXIT_CODE.search(self.error)
        return int(found[1]) if found else None


@dataclass
class BuildProgress:
    """The state of one build: feed it every object, in order."""

    steps: dict[str, BuildStep] = field(default_factory=dict)
    _running: dict[str, str] = field(default_factory=dict)
    _decoders: dict[tuple[str, int], codecs.IncrementalDecoder] = field(default_factory=dict)

    def feed(self, message: Mapping[str, Any]) -> Iterator[Event]:
        """The events in one object; unknown keys are ignored, since BuildKit adds some over time."""
        for vertex in message.get("vertexes") or ():
            yield from self._vertex(vertex)
        for status in message.get("statuses") or ():
            yield StepProgress(
                step=status.get("vertex", ""),
                what=status.get("id", ""),
                current=int(status.get("current") or 0),
                total=int(status.get("total") or 0),
                done="completed" in status,
            )
        for log in message.get("logs") or ():
            yield self._log(log)

    def _vertex(self, vertex: Mapping[str, Any]) -> Iterator[Event]:
        digest, started, completed = vertex["digest"], vertex.get("started"), vertex.get("completed")
        name = vertex.get("name", "")
        if not started:
            return
        if digest not in self.steps:
            self.steps[digest] = BuildStep(name)
            yield StepStarted(digest, name)
        if not completed:
            self._running[digest] = started
            return
        # Repetition: this same interval has been reported as ended.
        if self._running.get(digest) == completed:
            return
        self._running[digest] = completed
        known = self.steps[digest]
        cached = bool(vertex.get("cached"))
        seconds = 0.0 if cached else known.seconds + _seconds(started, completed)
        self.steps[digest] = replace(known, cached=cached, seconds=seconds, error=vertex.get("error") or "")
        yield StepFinished(digest, name, cached, seconds, vertex.get("error") or "")

    def _log(self, log: Mapping[str, Any]) -> StepOutput:
        # A character of several bytes may be cut between two messages.
        key = (log.get("vertex", ""), int(log.get("stream") or 1))
        decoder = self._decoders.setdefault(key, codecs.getincrementaldecoder("utf-8")("replace"))
        return StepOutput(key[0], decoder.decode(b64decode(log.get("data") or "")))


def title(name: str) -> str:
    """What BuildKit calls a step, as a person would: ``[stage-1 3/6] RUN <<EOF (# mod x...)`` is ``[3/6] mod x``."""
    position = _POSITION.match(name)
    rest = name[position.end() :] if position else name
    named = _NAMED.search(rest)
    return (f"[{position[1]}{position[2]}] " if position else "") + (named[1] if named else rest)


def label(name: str) -> str:
    """What a step does, without its place among the others: the same when steps were added before it."""
    position = _POSITION.match(name)
    return title(name[position.end() :] if position else name)


def is_internal(name: str) -> bool:
    """Whether a step of this name is BuildKit's own work and no instruction of a Dockerfile."""
    return bool(_INTERNAL.match(name))


def _seconds(started: str, completed: str) -> float:
    begin, end = (datetime.fromisoformat(text) for text in (started, completed))
    return max((end - begin).total_seconds(), 0.0)
