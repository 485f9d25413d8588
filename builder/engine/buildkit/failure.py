"""The error of a failed build, from its progress and buildx's output."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.engine.buildkit.memory import StepMemory
from builder.engine.buildkit.progress import title
from builder.engine.client.api import raw
from builder.engine.client.errors import NO_ROOM, START_HINT
from builder.errors import BaseGoneError, BuilderError, BuildFailedError, DiskFullError, EngineError, TreeGoneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.engine.buildkit.log import BuildLog
    from builder.engine.buildkit.progress import BuildProgress
    from builder.engine.client.endpoint import Endpoint

_ANSWER_WAIT = 5.0
_NAME_WIDTH = 120
_CANCELLED = 130
_KILLED = 137
# What buildx itself writes for a build: in the folder that the build works in.
_LOCAL_FILE = re.compile(rf"(/\S+/\.builder/work)/\S+: {NO_ROOM}", re.IGNORECASE)
_TREE = re.compile(r"load git source (\S+)$")
_BASE = re.compile(r"load metadata for \S+@sha256:[0-9a-f]{64}$")
# A registry that does not answer, or has dropped the image, is all the same to whoever pinned it.
_BASE_HINT = (
    "look at the network and at `docker login`; `builder lock --update base` pins the base again: what the registry, "
    "or else this engine, has under its name"
)


def build_error(
    endpoint: Endpoint, progress: BuildProgress, log: BuildLog, other_lines: Sequence[str], exit_code: int, path: str
) -> BuilderError:
    """Returns the error for a buildx that ended with ``exit_code``; ``other_lines`` are its output besides progress.

    It names the failed step, its exit code and its last lines, else buildx's own message; it is an EngineError where
    the engine no longer answers.
    """
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
        if tree := _TREE.search(step.name):
            message = f"the source tree {tree[1]} cannot be fetched: {' '.join(step.error.split())}"
            return TreeGoneError(message, address=tree[1], log=path)
        lines = [f"the build failed in step {_short(step.name)}: {step.error}", *excerpt]
        lines += [f"  {line}" for line in log.tail(digest)]
        failure = _failed(lines, step.error, log.memory(digest).after(step.error), path)
        if _BASE.search(step.name) and type(failure) is BuildFailedError:
            return BaseGoneError(failure.message, log=path, hint=_BASE_HINT)
        return failure
    return _failed([f"the build failed: {reason}", *excerpt], reason, StepMemory().after(reason), path)


def _short(name: str) -> str:
    first, _, more = title(name).partition("\n")
    return f"`{first[:_NAME_WIDTH]}…`" if more or len(first) > _NAME_WIDTH else f"`{first}`"


def _excerpt(lines: Sequence[str]) -> list[str]:
    """Returns the excerpt of the Dockerfile that buildx prints between two rules, with the line above, its location."""
    rules = [index for index, line in enumerate(lines) if line.startswith("-----")]
    return list(lines[max(rules[-2] - 1, 0) : rules[-1]]) if len(rules) >= 2 else []


def _failed(lines: Sequence[str], output: str, memory: StepMemory, path: str, hint: str = "") -> BuildFailedError:
    """The error with these lines and the advice that fits the ``output``; ``hint`` where none does."""
    message = "\n".join(lines)
    if NO_ROOM in output.lower():
        return DiskFullError(message, log=path, hint=_room_hint(output))
    return BuildFailedError(message, log=path, hint=_memory_hint(memory) or hint)


def _room_hint(output: str) -> str:
    if match := _LOCAL_FILE.search(output):
        return f"make room on the disk that holds {match[1]}, and build again"
    return "the engine's disk is full: `docker buildx prune` frees build cache, `builder prune` old images"


def _memory_hint(memory: StepMemory) -> str:
    if not memory.killed:
        return ""
    if memory.jobs > 1:
        return (
            f"{memory.jobs} compilers at once were too many: `--set build_jobs={memory.jobs // 2}` runs fewer, and the "
            "build goes on with what is finished"
        )
    return "free memory on the machine that builds: stop a model that is served there, or add swap"


def _end(memory: StepMemory) -> str:
    """The end of a step in words, where that was a lack of memory."""
    if memory.by_kernel:
        return ": it ran out of memory, and the kernel killed a process of it"
    return ": a process of it was killed, so the machine most likely ran out of memory" if memory.killed else ""
