"""The output of a build becomes events, an error or a readable log."""

from __future__ import annotations

import codecs
import re
from base64 import b64decode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TextIO

from builder.base.errors import BaseGoneError, BuilderError, BuildFailedError, DiskFullError, EngineError, TreeGoneError
from builder.base.redaction import redacted
from builder.base.values import dataclass, field, replace
from builder.engine.client import NO_ROOM, START_HINT, Endpoint, raw

# What the steps that compile print (dockerfiles/_parts/wheels.j2).
_COMPILING = re.compile(
    r"compiling (\S+) with MAX_JOBS=(\d+)(?:: \d+ GiB at| took (\d+) MiB of memory$| ran out of memory: (the kernel))"
)
# What is left of a compiler that was killed, or got no memory, in the words of shells, gcc, nvcc, linkers, ninja,
# cargo, Go and Python. SIGTERM is what earlyoom sends first.
_SIGNS = re.compile(
    r"\bKilled\b|(?:Killed|Terminated) signal terminated program|signal: killed|signal: 9, SIGKILL"
    r"|(?:died due to|terminated with) signal 9|Signals\.SIGKILL|\[code=137\]|exit (?:status|code):? (?:137|-9)\b"
    r"|[Cc]annot allocate memory|virtual memory exhausted|std::bad_alloc|: out of memory"
)


@dataclass(frozen=True)
class StepMemory:
    """The memory of one step, as its output tells it: the source that it compiles and with how many jobs, the most that
    those took in MiB, both 0 if unknown. ``killed`` if there are signs of a killed process."""

    source: str = ""
    jobs: int = 0
    mib: int = 0
    killed: bool = False

    def after(self, line: str) -> StepMemory:
        """The same with what one more line of output tells."""
        if own := _COMPILING.search(line):
            source, jobs, mib, kernel = own.groups()
            return StepMemory(source, int(jobs), int(mib or self.mib), self.killed or bool(kernel))
        return self if self.killed or not _SIGNS.search(line) else replace(self, killed=True)


# BuildKit's raw JSON progress, as events. ``docker buildx … --progress=rawjson`` writes one object a line:
# ``vertexes`` (a step began, ended, was cached or failed), ``statuses`` (progress within a step) and ``logs``
# (output, base64). The same vertex comes many times, and some start and end more than once; `BuildProgress` keeps the
# state that tells a change from a repetition. The format is the client's SolveStatus:
# https://pkg.go.dev/github.com/moby/buildkit/client#SolveStatus

# BuildKit's own steps; with several targets their names come first: `[tf5 internal] load .dockerignore`.
_INTERNAL = re.compile(r"\[(\S+ )?internal\]|\[(\S+ )?context [^]]*\]|\[auth\]|resolving provenance")
# A here-document's step is named by its first line, which the templates make a comment with its title.
_COMMENT = re.compile(r"\(# (.*?)(\.\.\.)?\)$")
_DIGEST = re.compile("@sha256:[0-9a-f]{64}$")  # of a base image: it alone is as wide as a terminal
_POSITION = re.compile(r"^\[((?:[^\] ]+ )*?)(?:stage-\d+ )?((?:[^\] ]+ )?\d+/\d+)\] ")
# What `builder.building.bake` adds to each step if a proxy has a password.
_PROXY_SECRETS = re.compile(
    r"(?:--mount=type=secret,id=\w+_PROXY,env=\w+_proxy )|(?:--mount=type=secret,id=(\w+_PROXY),env=\1 )"
)


@dataclass(frozen=True)
class _Step:
    """BuildKit's digest of a step, and its ``name`` there, ``[2/3] RUN make``."""

    step: str
    name: str

    @property
    def internal(self) -> bool:
        """True for BuildKit's own work, which the user need not see."""
        return bool(_INTERNAL.match(self.name))

    @property
    def title(self) -> str:
        """The name for the user: ``[3/6] mod x``."""
        return title(self.name)

    @property
    def label(self) -> str:
        """The title without the step's position, by which its times are remembered."""
        return title(_POSITION.sub("", self.name))


@dataclass(frozen=True)
class StepStarted(_Step):
    """The start of a step."""


@dataclass(frozen=True)
class StepFinished(_Step):
    """The end of a step after ``seconds``, 0 if it was cached; ``error`` is empty unless it failed or was cancelled. A
    few internal steps end more than once: the last end counts."""

    cached: bool = False
    seconds: float = 0.0
    error: str = ""

    @property
    def cancelled(self) -> bool:
        """True if it ended only because another step failed or the user stopped the build."""
        return "context canceled" in self.error

    @property
    def exit_code(self) -> int | None:
        match = re.search(r"exit code: (\d+)", self.error)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class StepOutput:
    """A piece of a step's output, as it came: not always whole lines."""

    step: str
    text: str


EXPORTING = "exporting layers"  # as BuildKit calls it


@dataclass(frozen=True)
class StepProgress:
    """The progress of a part of a step (``what``: a layer, `EXPORTING`) in bytes; ``total`` 0 if unknown."""

    step: str
    what: str
    current: int
    total: int
    done: bool


@dataclass(frozen=True)
class LayersPacked:
    """The bytes that an export (``step``) has packed so far, which BuildKit's progress lacks."""

    step: str
    size: int


Event = StepStarted | StepFinished | StepOutput | StepProgress | LayersPacked


@dataclass
class BuildProgress:
    """The steps of a build that have ended, from its progress messages in order."""

    steps: dict[str, StepFinished] = field(default_factory=dict)
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
            # A character of several bytes may be cut between two messages.
            key = (log.get("vertex", ""), int(log.get("stream") or 1))
            decoder = self._decoders.setdefault(key, codecs.getincrementaldecoder("utf-8")("replace"))
            yield StepOutput(key[0], decoder.decode(b64decode(log.get("data") or "")))

    def _vertex(self, vertex: Mapping[str, Any]) -> Iterator[Event]:
        digest, name = vertex["digest"], vertex.get("name", "")
        started, completed = vertex.get("started"), vertex.get("completed")
        if not started:
            return
        if digest not in self._running:
            yield StepStarted(digest, name)
        # A repetition: the end of this same interval was reported before.
        repeated = completed and self._running.get(digest) == completed
        self._running[digest] = completed or started
        if not completed or repeated:
            return
        before = self.steps[digest].seconds if digest in self.steps else 0.0
        begin, end = map(datetime.fromisoformat, (started, completed))
        cached = bool(vertex.get("cached"))
        seconds = 0.0 if cached else before + max((end - begin).total_seconds(), 0.0)
        self.steps[digest] = StepFinished(digest, name, cached, seconds, vertex.get("error") or "")
        yield self.steps[digest]


def title(name: str) -> str:
    """A step's name for the user: ``[stage-1 3/6] RUN <<EOF (# mod x...)`` becomes ``[3/6] mod x``. No digest of a
    base."""
    position = _POSITION.match(name)
    instruction = _DIGEST.sub("", _PROXY_SECRETS.sub("", name[position.end() :] if position else name))
    comment = _COMMENT.search(instruction)
    return (f"[{position[1]}{position[2]}] " if position else "") + (comment[1] if comment else instruction)


# The error of a build that failed.

TAIL = 15
_ANSWER_WAIT = 5.0
_NAME_WIDTH = 120
_CANCELLED = 130
_KILLED = 137
# A registry that does not answer, or has dropped the image, is all the same to whoever pinned it.
_BASE_HINT = (
    "check the network and `docker login`. `builder lock --update base` pins the base again, from the registry or from "
    "this engine"
)


def build_error(
    endpoint: Endpoint, progress: BuildProgress, log: BuildLog, other_lines: Sequence[str], exit_code: int, path: str
) -> BuilderError:
    """Returns the error for a buildx that ended with ``exit_code``: the failed step, its exit code and its last lines,
    else buildx's own message (``other_lines``); an EngineError if the engine no longer answers."""
    failed = [step for step in progress.steps.values() if step.error and not step.cancelled]
    for step in failed:
        if step.exit_code is not None:
            memory = log.memory(step.step)
            memory = replace(memory, killed=memory.killed or step.exit_code == _KILLED)
            killed = (
                ": one of its processes was killed, so the machine most likely ran out of memory"
                if memory.killed
                else ""
            )
            head = f"the build failed in step {_short(step)}, with exit code {step.exit_code}{killed}"
            return _failed([head, *_indented(log, step)], _last_error(other_lines, exit_code), memory, path)
    try:
        raw(endpoint, "GET", "/_ping", timeout=_ANSWER_WAIT)
    except EngineError as error:
        return EngineError(f"the Docker engine stopped during the build: {error.message}", hint=START_HINT)
    if exit_code == _CANCELLED:
        return BuildFailedError("the build was cancelled", log=path)
    # The excerpt of the Dockerfile that buildx prints between two rules, with the line above, its location.
    rules = [index for index, line in enumerate(other_lines) if line.startswith("-----")]
    excerpt = other_lines[max(rules[-2] - 1, 0) : rules[-1]] if len(rules) >= 2 else ()
    for step in failed:
        if tree := re.search(r"load git source (\S+)$", step.name):
            message = f"the source tree {tree[1]} cannot be fetched: {' '.join(step.error.split())}"
            return TreeGoneError(message, address=tree[1], log=path)
        lines = [f"the build failed in step {_short(step)}: {step.error}", *excerpt, *_indented(log, step)]
        failure = _failed(lines, step.error, log.memory(step.step).after(step.error), path)
        base = re.search(r"load metadata for (\S+@sha256:[0-9a-f]{64})$", step.name)
        if base and type(failure) is BuildFailedError:
            return BaseGoneError(failure.message, reference=base[1], log=path, hint=_BASE_HINT)
        return failure
    reason = _last_error(other_lines, exit_code)
    return _failed([f"the build failed: {reason}", *excerpt], reason, StepMemory().after(reason), path)


def _last_error(lines: Sequence[str], exit_code: int) -> str:
    written = [line for line in lines if line.strip()] or [f"buildx ended with exit code {exit_code}"]
    errors = [line.removeprefix("ERROR: ") for line in written if line.startswith("ERROR: ")]
    return (errors or written)[-1]


def _short(step: StepFinished) -> str:
    first, _, more = step.title.partition("\n")
    return f"`{first[:_NAME_WIDTH]}…`" if more or len(first) > _NAME_WIDTH else f"`{first}`"


def _indented(log: BuildLog, step: StepFinished) -> list[str]:
    return [f"  {line}" for line in log.tail(step.step)]


def _failed(lines: Sequence[str], reason: str, memory: StepMemory, path: str) -> BuildFailedError:
    message, hint = "\n".join(lines), ""
    if NO_ROOM in f"{message}{reason}".lower():
        hint = (
            "a disk is full. On the engine's disk, `docker buildx prune` frees build cache, `builder prune` removes "
            "old images. If the message names .builder/work, free space on the disk of this project"
        )
        return DiskFullError(message, log=path, hint=hint)
    if memory.killed and memory.jobs > 1:
        hint = (
            f"{memory.jobs} parallel compilers were too many: `--set build_jobs={memory.jobs // 2}` runs fewer. The "
            "build reuses finished work"
        )
    elif memory.killed:
        hint = "free memory on the machine that builds: stop a model that is served there, or add swap"
    return BuildFailedError(message, log=path, hint=hint)


# The whole output of a build as text, in the form of ``--progress=plain``: every line has its step's number.


@dataclass
class BuildLog:
    """A build's log file, written as events come, the last ``TAIL`` lines of every step, and its memory."""

    file: TextIO
    _numbers: dict[str, int] = field(default_factory=dict)
    _unfinished: dict[str, list[str]] = field(default_factory=dict)
    _tails: dict[str, deque[str]] = field(default_factory=dict)
    _ends: dict[str, str] = field(default_factory=dict)
    _memory: dict[str, StepMemory] = field(default_factory=dict)

    def write(self, event: Event) -> None:
        number = self._numbers.setdefault(event.step, len(self._numbers) + 1)
        match event:
            case StepStarted():
                self._lines(number, [event.name])
            case StepOutput():
                # A step may print megabytes without a line break: only the latest state of a progress bar is kept.
                *ended, last = event.text.split("\n")
                if ended:
                    ended[0] = "".join([*self._unfinished.pop(event.step, ()), ended[0]])
                    self._append(number, event.step, ended)
                pieces = self._unfinished.setdefault(event.step, [])
                pieces.append(last)
                if "\r" in last:
                    pieces[:] = [re.sub(r"(?s).*\r(?=[^\r])", "", "".join(pieces))]
            case StepFinished():
                if unfinished := "".join(self._unfinished.pop(event.step, ())):
                    self._append(number, event.step, [unfinished])
                # An internal step may end more than once: only a change is worth a line.
                end = "CACHED" if event.cached else f"DONE {event.seconds:.1f}s"
                end = f"ERROR after {event.seconds:.1f}s: {event.error}" if event.error else end
                if self._ends.get(event.step) != end:
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
        return [*self._tails.get(step, ()), *filter(None, [redacted("".join(self._unfinished.get(step, ())))])]

    def memory(self, step: str) -> StepMemory:
        return self._memory.get(step, StepMemory())

    @property
    def compiled(self) -> tuple[StepMemory, ...]:
        return tuple(memory for memory in self._memory.values() if memory.mib)

    def _append(self, number: int, step: str, lines: Iterable[str]) -> None:
        # A progress bar redraws its line after \r: only its last state is kept.
        shown = [redacted(line.rstrip("\r").rpartition("\r")[2]) for line in lines]
        for line in shown:
            self._memory[step] = self.memory(step).after(line)
        self._tails.setdefault(step, deque(maxlen=TAIL)).extend(shown)
        self._lines(number, shown)

    def _lines(self, number: int, lines: Iterable[str]) -> None:
        self.file.writelines(f"#{number} {redacted(line)}\n" for text in lines for line in text.split("\n"))
