"""The output of a build becomes events, an error or a readable log."""

from __future__ import annotations

import codecs
import re
from base64 import b64decode
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from builder.base.errors import BaseGoneError, BuilderError, BuildFailedError, DiskFullError, EngineError, TreeGoneError
from builder.base.redaction import redacted
from builder.engine.client import NO_ROOM, START_HINT, raw

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from builder.engine.client import Endpoint


# What the steps that compile say of themselves (dockerfiles/_parts/wheels.j2).
_COMPILING = re.compile(
    r"compiling (\S+) with MAX_JOBS=(\d+)(?:: \d+ GiB at| took (\d+) MiB of memory$| ran out of memory: (the kernel))"
)
# What is left of a compiler that was killed, or got no memory, in the words of shells, gcc, nvcc, linkers, ninja,
# cargo, Go and Python. SIGTERM is what earlyoom sends first.
_SIGNS = re.compile(
    r"\bKilled\b|(?:Killed|Terminated) signal terminated program|signal: killed|signal: 9, SIGKILL"
    r"|(?:died due to|terminated with) signal 9|Signals\.SIGKILL|\[code=137\]|exit (?:status|code):? (?:137|-9)\b"
    r"|Cannot allocate memory|cannot allocate memory|virtual memory exhausted|std::bad_alloc|: out of memory"
)


@dataclass(frozen=True)
class StepMemory:
    """The memory of one step, as far as its output tells: the source that it compiles and with how many jobs, the most
    that those took in MiB, both 0 where it does not say. ``killed`` if there are signs of a killed process,
    ``by_kernel`` if the step saw the kernel do it."""

    source: str = ""
    jobs: int = 0
    mib: int = 0
    killed: bool = False
    by_kernel: bool = False

    def after(self, line: str) -> StepMemory:
        """The same with what one more line of output tells."""
        if own := _COMPILING.search(line):
            source, jobs, mib, kernel = own.groups()
            return replace(
                self,
                source=source,
                jobs=int(jobs),
                mib=int(mib or self.mib),
                killed=self.killed or bool(kernel),
                by_kernel=self.by_kernel or bool(kernel),
            )
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
# What `builder.building.bake` adds to each step where a proxy has a password.
_PROXY_SECRETS = re.compile(
    r"(?:--mount=type=secret,id=\w+_PROXY,env=\w+_proxy )|(?:--mount=type=secret,id=(\w+_PROXY),env=\1 )"
)


class _Named:
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
        position = _POSITION.match(self.name)
        return title(self.name[position.end() :] if position else self.name)


@dataclass(frozen=True)
class StepStarted(_Named):
    """The start of a step: BuildKit's digest of it, and its ``name`` there, ``[2/3] RUN make``."""

    step: str
    name: str


@dataclass(frozen=True)
class StepFinished(_Named):
    """The end of a step after ``seconds``; ``error`` is empty unless it failed or was cancelled. A few internal steps
    end more than once: the last end counts."""

    step: str
    name: str
    cached: bool
    seconds: float
    error: str = ""


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
    """The bytes that an export (``step``) has packed so far, which BuildKit's progress lacks: see `packed_layers`."""

    step: str
    size: int


Event = StepStarted | StepFinished | StepOutput | StepProgress | LayersPacked


@dataclass(frozen=True)
class BuildStep(_Named):
    """The state of a step; ``seconds`` is 0 for one that was cached or has not ended."""

    name: str
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
            # A character of several bytes may be cut between two messages.
            key = (log.get("vertex", ""), int(log.get("stream") or 1))
            decoder = self._decoders.setdefault(key, codecs.getincrementaldecoder("utf-8")("replace"))
            yield StepOutput(key[0], decoder.decode(b64decode(log.get("data") or "")))

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
        begin, end = map(datetime.fromisoformat, (started, completed))
        seconds = 0.0 if cached else step.seconds + max((end - begin).total_seconds(), 0.0)
        self.steps[digest] = replace(step, cached=cached, seconds=seconds, error=vertex.get("error") or "")
        yield StepFinished(digest, name, cached, seconds, vertex.get("error") or "")


def title(name: str) -> str:
    """A step's name for the user: ``[stage-1 3/6] RUN <<EOF (# mod x...)`` becomes ``[3/6] mod x``. No digest of a
    base."""
    position = _POSITION.match(name)
    instruction = _DIGEST.sub("", _PROXY_SECRETS.sub("", name[position.end() :] if position else name))
    comment = _COMMENT.search(instruction)
    return (f"[{position[1]}{position[2]}] " if position else "") + (comment[1] if comment else instruction)


_ANSWER_WAIT = 5.0
_NAME_WIDTH = 120
_CANCELLED = 130
_KILLED = 137
# What buildx itself writes for a build: in the folder that the build works in.
_LOCAL_FILE = re.compile(rf"(/\S+/\.builder/work)/\S+: {NO_ROOM}", re.IGNORECASE)
# A registry that does not answer, or has dropped the image, is all the same to whoever pinned it.
_BASE_HINT = (
    "look at the network and at `docker login`; `builder lock --update base` pins the base again: what the registry, "
    "or else this engine, has under its name"
)


def build_error(
    endpoint: Endpoint, progress: BuildProgress, log: BuildLog, other_lines: Sequence[str], exit_code: int, path: str
) -> BuilderError:
    """Returns the error for a buildx that ended with ``exit_code``: the failed step, its exit code and its last lines,
    else buildx's own message (``other_lines``); an EngineError where the engine no longer answers."""
    errors = [line.removeprefix("ERROR: ") for line in other_lines if line.startswith("ERROR: ")]
    last_line = next((line for line in reversed(other_lines) if line.strip()), f"buildx ended with {exit_code}")
    reason = errors[-1] if errors else last_line
    failed = [(digest, step) for digest, step in progress.steps.items() if step.error and not step.cancelled]
    for digest, step in failed:
        if step.exit_code is None:
            continue
        memory = log.memory(digest)
        if step.exit_code == _KILLED and not memory.killed:
            memory = replace(memory, killed=True)
        head = f"the build failed in step {_short(step.name)}, with exit code {step.exit_code}{_end(memory)}"
        lines = [head, *(f"  {line}" for line in log.tail(digest))]
        return _failed(lines, "\n".join(lines) + reason, memory, path)
    try:
        raw(endpoint, "GET", "/_ping", timeout=_ANSWER_WAIT)
    except EngineError as error:
        return EngineError(f"the Docker engine stopped during the build: {error.message}", hint=START_HINT)
    if exit_code == _CANCELLED:
        return BuildFailedError("the build was cancelled", log=path)
    excerpt = _excerpt(other_lines)
    for digest, step in failed:
        if tree := re.search(r"load git source (\S+)$", step.name):
            message = f"the source tree {tree[1]} cannot be fetched: {' '.join(step.error.split())}"
            return TreeGoneError(message, address=tree[1], log=path)
        lines = [f"the build failed in step {_short(step.name)}: {step.error}", *excerpt]
        lines += [f"  {line}" for line in log.tail(digest)]
        failure = _failed(lines, step.error, log.memory(digest).after(step.error), path)
        base = re.search(r"load metadata for (\S+@sha256:[0-9a-f]{64})$", step.name)
        if base and type(failure) is BuildFailedError:
            return BaseGoneError(failure.message, reference=base[1], log=path, hint=_BASE_HINT)
        return failure
    return _failed([f"the build failed: {reason}", *excerpt], reason, StepMemory().after(reason), path)


def _short(name: str) -> str:
    first, _, more = title(name).partition("\n")
    return f"`{first[:_NAME_WIDTH]}…`" if more or len(first) > _NAME_WIDTH else f"`{first}`"


def _excerpt(lines: Sequence[str]) -> list[str]:
    """Returns the excerpt of the Dockerfile that buildx prints between two rules, with the line above, its location."""
    rules = [index for index, line in enumerate(lines) if line.startswith("-----")]
    return list(lines[max(rules[-2] - 1, 0) : rules[-1]]) if len(rules) >= 2 else []


def _failed(lines: Sequence[str], output: str, memory: StepMemory, path: str) -> BuildFailedError:
    message, hint = "\n".join(lines), ""
    if NO_ROOM in output.lower():
        hint = "the engine's disk is full: `docker buildx prune` frees build cache, `builder prune` old images"
        if match := _LOCAL_FILE.search(output):
            hint = f"make room on the disk that holds {match[1]}, and build again"
        return DiskFullError(message, log=path, hint=hint)
    if memory.killed and memory.jobs > 1:
        hint = (
            f"{memory.jobs} compilers at once were too many: `--set build_jobs={memory.jobs // 2}` runs fewer, and the "
            "build goes on with what is finished"
        )
    elif memory.killed:
        hint = "free memory on the machine that builds: stop a model that is served there, or add swap"
    return BuildFailedError(message, log=path, hint=hint)


def _end(memory: StepMemory) -> str:
    """The end of a step in words, where that was a lack of memory."""
    if memory.by_kernel:
        return ": it ran out of memory, and the kernel killed a process of it"
    return ": a process of it was killed, so the machine most likely ran out of memory" if memory.killed else ""


# The whole output of a build as text, in the form of ``--progress=plain``: every line has its step's number.

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
        number = self._numbers.setdefault(event.step, len(self._numbers) + 1)
        match event:
            case StepStarted():
                self._lines(number, [event.name])
            case StepOutput():
                text = self._unfinished.get(event.step, "") + event.text
                *lines, self._unfinished[event.step] = text.split("\n")
                self._append(number, event.step, lines)
            case StepFinished():
                if unfinished := self._unfinished.pop(event.step, ""):
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
        return [*self._tails.get(step, ()), *filter(None, [redacted(self._unfinished.get(step, ""))])]

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
