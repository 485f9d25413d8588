"""Converts the output of a build into events, an error, and a readable log."""

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

# The output of steps that compile (dockerfiles/_parts/wheels.j2).
_COMPILING = re.compile(
    r"compiling (\S+) with MAX_JOBS=(\d+)(?:: \d+ GiB at| took (\d+) MiB of memory$| ran out of memory: (the kernel))"
)
# The messages of shells, gcc, nvcc, linkers, ninja, cargo, Go and Python after a compiler was killed or got no memory.
# earlyoom sends SIGTERM first.
_SIGNS = re.compile(
    r"\bKilled\b|(?:Killed|Terminated) signal terminated program|signal: killed|signal: 9, SIGKILL"
    r"|(?:died due to|terminated with) signal 9|Signals\.SIGKILL|\[code=137\]|exit (?:status|code):? (?:137|-9)\b"
    r"|[Cc]annot allocate memory|virtual memory exhausted|std::bad_alloc|: out of memory"
)


@dataclass(frozen=True)
class StepMemory:
    """The memory of one step, from its output: the ``source`` that it compiles, its number of ``jobs``, and their peak
    memory in MiB; the numbers are 0 if unknown. ``killed`` if the output has signs of a killed process."""

    source: str = ""
    jobs: int = 0
    mib: int = 0
    killed: bool = False

    def after(self, line: str) -> StepMemory:
        """Returns the record updated with one more line of output."""
        if own := _COMPILING.search(line):
            source, jobs, mib, kernel = own.groups()
            return StepMemory(source, int(jobs), int(mib or self.mib), self.killed or bool(kernel))
        return self if self.killed or not _SIGNS.search(line) else replace(self, killed=True)


# BuildKit's raw JSON progress, as events. ``docker buildx … --progress=rawjson`` writes one object per line:
# ``vertexes`` (a step began, ended, was cached or failed), ``statuses`` (progress within a step) and ``logs`` (output,
# base64). The same vertex is repeated many times, and some vertexes start and end more than once. `BuildProgress` keeps
# the state to distinguish a change from a repetition. The format is the client's SolveStatus:
# https://pkg.go.dev/github.com/moby/buildkit/client#SolveStatus

# BuildKit's own steps. With several targets, the target comes first: `[tf5 internal] load .dockerignore`.
_INTERNAL = re.compile(r"\[(\S+ )?internal\]|\[(\S+ )?context [^]]*\]|\[auth\]|resolving provenance")
# The name of a here-document's step is its first line. In the templates, this line is a comment with a title.
_COMMENT = re.compile(r"\(# (.*?)(\.\.\.)?\)$")
_DIGEST = re.compile("@sha256:[0-9a-f]{64}$")  # of a base image: the digest alone is as wide as a terminal
_POSITION = re.compile(r"^\[((?:[^\] ]+ )*?)(?:stage-\d+ )?((?:[^\] ]+ )?\d+/\d+)\] ")
# The options that `builder.building.bake` adds to each step if a proxy has a password.
_PROXY_SECRETS = re.compile(
    r"(?:--mount=type=secret,id=\w+_PROXY,env=\w+_proxy )|(?:--mount=type=secret,id=(\w+_PROXY),env=\1 )"
)


@dataclass(frozen=True)
class _Step:
    """BuildKit's digest of a step, and BuildKit's ``name`` for the step, ``[2/3] RUN make``."""

    step: str
    name: str

    @property
    def internal(self) -> bool:
        """True for BuildKit's own steps, which the user need not see."""
        return bool(_INTERNAL.match(self.name))

    @property
    def title(self) -> str:
        """The name for the user: ``[3/6] mod x``."""
        return title(self.name)

    @property
    def label(self) -> str:
        """The title without the step's position. The times of steps are stored under this label."""
        return title(_POSITION.sub("", self.name))


@dataclass(frozen=True)
class StepStarted(_Step):
    """The start of a step."""


@dataclass(frozen=True)
class StepFinished(_Step):
    """The end of a step after ``seconds`` (0 if it was cached). ``error`` is empty unless the step failed or was
    cancelled. A few internal steps end more than once: the last end counts."""

    cached: bool = False
    seconds: float = 0.0
    error: str = ""

    @property
    def cancelled(self) -> bool:
        """True if the step ended only because another step failed or the user stopped the build."""
        return "context canceled" in self.error

    @property
    def exit_code(self) -> int | None:
        match = re.search(r"exit code: (\d+)", self.error)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class StepOutput:
    """A piece of a step's output, not always of whole lines."""

    step: str
    text: str


EXPORTING = "exporting layers"  # BuildKit's name


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
    """The bytes that an export (``step``) has packed so far. BuildKit's progress does not contain them."""

    step: str
    size: int


Event = StepStarted | StepFinished | StepOutput | StepProgress | LayersPacked


@dataclass
class BuildProgress:
    """The finished steps of a build, from its progress messages in order."""

    steps: dict[str, StepFinished] = field(default_factory=dict)
    _running: dict[str, str] = field(default_factory=dict)
    _decoders: dict[tuple[str, int], codecs.IncrementalDecoder] = field(default_factory=dict)

    def feed(self, message: Mapping[str, Any]) -> Iterator[Event]:
        """Reads a progress message and yields its events. Unknown keys are ignored, since BuildKit adds new ones."""
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
            # A multibyte character may be split between two messages.
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
        # A repetition: the end of this interval was already reported.
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
    """A step's name for the user: ``[stage-1 3/6] RUN <<EOF (# mod x...)`` becomes ``[3/6] mod x``. Digests of
    base images are removed."""
    position = _POSITION.match(name)
    instruction = _DIGEST.sub("", _PROXY_SECRETS.sub("", name[position.end() :] if position else name))
    comment = _COMMENT.search(instruction)
    return (f"[{position[1]}{position[2]}] " if position else "") + (comment[1] if comment else instruction)


# The error of a failed build.

TAIL = 15
_ANSWER_WAIT = 5.0
_NAME_WIDTH = 120
_CANCELLED = 130
_KILLED = 137
# The same hint applies if the registry does not answer, and if it no longer has the image.
_BASE_HINT = (
    "check the network and your login (`docker login REGISTRY`); if the registry no longer has the image, "
    "`builder lock DEFINITION --update base` pins the base again"
)

# buildx keeps its own files below HOME. HOME may be missing or read-only, and `sudo docker` leaves files of root there.
_OWN_FILE = re.compile(
    r"(?:mkdir /.*|open /.*/(?:\.docker|buildx)/.*): "
    r"(?:permission denied|read-only file system|no such file or directory)"
)
_OWN_FILE_HINT = (
    "buildx keeps its own files below HOME. Give your user access to that path, or set BUILDX_CONFIG to a folder that "
    "your user can write to"
)


def build_error(
    endpoint: Endpoint, progress: BuildProgress, log: BuildLog, other_lines: Sequence[str], exit_code: int, path: str
) -> BuilderError:
    """Returns the error after buildx ended with ``exit_code``. It has the failed step, its exit code and its last
    lines, or else buildx's own message (``other_lines``). An EngineError if the engine no longer answers."""
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
    # buildx prints an excerpt of the Dockerfile between two rules; the line above is its location.
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
    if _OWN_FILE.fullmatch(reason):
        return BuildFailedError(f"the build failed: {reason}", log=path, hint=_OWN_FILE_HINT)
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
            f"{memory.jobs} parallel compilers needed too much memory: run `builder build` or `builder rebuild` with "
            f"`--set build_jobs={memory.jobs // 2}`. The build reuses finished work"
        )
    elif memory.killed:
        hint = "free memory on the machine that builds: stop a model that is served there, or add swap"
    return BuildFailedError(message, log=path, hint=hint)


# The whole output of a build as text, in the format of ``--progress=plain``: every line has its step's number.


@dataclass
class BuildLog:
    """A build's log file, which is written event by event; and the last ``TAIL`` lines and the memory of every step."""

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
                # An internal step may end more than once: only a change gets a line.
                end = "CACHED" if event.cached else f"DONE {event.seconds:.1f}s"
                end = f"ERROR after {event.seconds:.1f}s: {event.error}" if event.error else end
                if self._ends.get(event.step) != end:
                    self._ends[event.step] = end
                    self._lines(number, [end])
            case _:
                return
        # A build may be killed at any time, and its log must be complete then.
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
        # A progress bar redraws its line after \r. Only its last state is kept.
        shown = [redacted(line.rstrip("\r").rpartition("\r")[2]) for line in lines]
        for line in shown:
            self._memory[step] = self.memory(step).after(line)
        self._tails.setdefault(step, deque(maxlen=TAIL)).extend(shown)
        self._lines(number, shown)

    def _lines(self, number: int, lines: Iterable[str]) -> None:
        self.file.writelines(f"#{number} {redacted(line)}\n" for text in lines for line in text.split("\n"))
