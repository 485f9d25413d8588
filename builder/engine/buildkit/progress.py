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

# BuildKit's own steps; with several targets their names come first: `[tf5 internal] load .dockerignore`.
_INTERNAL = re.compile(r"\[(\S+ )?internal\]|\[(\S+ )?context [^]]*\]|\[auth\]|resolving provenance")
# A here-document's step is named by its first line, which the templates make a comment with its title.
_COMMENT = re.compile(r"\(# (.*?)(\.\.\.)?\)$")
_POSITION = re.compile(r"^\[((?:[^\] ]+ )*?)(?:stage-\d+ )?((?:[^\] ]+ )?\d+/\d+)\] ")
# What `builder.building.proxy_secrets` adds to each step where a proxy has a password.
_PROXY_SECRETS = re.compile(
    r"(?:--mount=type=secret,id=\w+_PROXY,env=\w+_proxy )|(?:--mount=type=secret,id=(\w+_PROXY),env=\1 )"
)
_EXIT_CODE = re.compile(r"exit code: (\d+)")


@dataclass(frozen=True)
class NamedStep:
    """A step by BuildKit's digest of it, and by its ``name`` there: ``[2/3] RUN make``."""

    step: str
    name: str

    @property
    def internal(self) -> bool:
        """True for BuildKit's own work, which the user need not see."""
        return is_internal(self.name)

    @property
    def title(self) -> str:
        """The name for the user: ``[3/6] mod x``."""
        return title(self.name)

    @property
    def label(self) -> str:
        """The title without the step's position, by which its times are remembered."""
        return _label(self.name)


@dataclass(frozen=True)
class StepStarted(NamedStep):
    """The start of a step."""


@dataclass(frozen=True)
class StepFinished(NamedStep):
    """The end of a step after ``seconds``; ``error`` is empty unless it failed or was cancelled.

    A few internal steps end more than once: the last end counts.
    """

    cached: bool
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class StepOutput:
    """A piece of a step's output, as it came: not always whole lines."""

    step: str
    text: str


@dataclass(frozen=True)
class StepProgress:
    """The progress of a part of a step (``what``: a layer, ``exporting layers``) in bytes; ``total`` 0 if unknown."""

    step: str
    what: str
    current: int
    total: int
    done: bool


Event = StepStarted | StepFinished | StepOutput | StepProgress


@dataclass(frozen=True)
class BuildStep:
    """The state of a step; ``seconds`` is 0 for one that was cached or has not ended."""

    name: str
    cached: bool = False
    seconds: float = 0.0
    error: str = ""

    @property
    def internal(self) -> bool:
        """True for BuildKit's own work, which the user need not see."""
        return is_internal(self.name)

    @property
    def label(self) -> str:
        """The title without the step's position, by which its times are remembered."""
        return _label(self.name)

    @property
    def cancelled(self) -> bool:
        """True if it ended only because another step failed or the user stopped the build."""
        return "context canceled" in self.error

    @property
    def exit_code(self) -> int | None:
        """The exit code of the step's command, if the step failed by it."""
        match = _EXIT_CODE.search(self.error)
        return int(match[1]) if match else None


@dataclass
class BuildProgress:
    """The state of a build, from its progress messages in order."""

    steps: dict[str, BuildStep] = field(default_factory=dict)
    _running: dict[str, str] = field(default_factory=dict)
    _decoders: dict[tuple[str, int], codecs.IncrementalDecoder] = field(default_factory=dict)

    def feed(self, message: Mapping[str, Any]) -> Iterator[Event]:
        """Takes a progress message; yields its events. Unknown keys are ignored, since BuildKit adds some over time."""
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
        # A repetition: the end of this same interval was reported before.
        if self._running.get(digest) == completed:
            return
        self._running[digest] = completed
        step = self.steps[digest]
        cached = bool(vertex.get("cached"))
        seconds = 0.0 if cached else step.seconds + _seconds(started, completed)
        self.steps[digest] = replace(step, cached=cached, seconds=seconds, error=vertex.get("error") or "")
        yield StepFinished(digest, name, cached, seconds, vertex.get("error") or "")

    def _log(self, log: Mapping[str, Any]) -> StepOutput:
        # A character of several bytes may be cut between two messages.
        key = (log.get("vertex", ""), int(log.get("stream") or 1))
        decoder = self._decoders.setdefault(key, codecs.getincrementaldecoder("utf-8")("replace"))
        return StepOutput(key[0], decoder.decode(b64decode(log.get("data") or "")))


def title(name: str) -> str:
    """Returns a step's name for the user: ``[stage-1 3/6] RUN <<EOF (# mod x...)`` becomes ``[3/6] mod x``."""
    position = _POSITION.match(name)
    instruction = _PROXY_SECRETS.sub("", name[position.end() :] if position else name)
    comment = _COMMENT.search(instruction)
    return (f"[{position[1]}{position[2]}] " if position else "") + (comment[1] if comment else instruction)


def _label(name: str) -> str:
    """Returns a step's title without its position, so that it stays the same when steps are added before it."""
    position = _POSITION.match(name)
    return title(name[position.end() :] if position else name)


def is_internal(name: str) -> bool:
    """True if a step of this name is BuildKit's own work and no instruction of a Dockerfile."""
    return bool(_INTERNAL.match(name))


def _seconds(started: str, completed: str) -> float:
    begin, end = (datetime.fromisoformat(text) for text in (started, completed))
    return max((end - begin).total_seconds(), 0.0)
