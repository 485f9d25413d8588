"""The buildx process: read while it runs, and never left behind."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from builder.child_process import tied_to_parent
from builder.engine.buildkit.failure import build_error
from builder.engine.buildkit.log import BuildLog
from builder.engine.buildkit.progress import BuildProgress, Event
from builder.engine.client import json_lines
from builder.engine.client.errors import START_HINT
from builder.errors import EngineError
from builder.storage.named_errors import naming

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.engine.buildkit.memory import StepMemory
    from builder.engine.client.endpoint import Endpoint

_STOP_WAIT = 5.0


def run(
    endpoint: Endpoint,
    directory: Path,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    log_path: Path,
    on_event: Callable[[Event], None],
) -> tuple[BuildProgress, tuple[StepMemory, ...]]:
    """Runs buildx with ``arguments`` in ``directory``, writes its log and passes on its events; returns the end state,
    and the memory of the steps that compiled.

    ``environ`` is the whole environment. Raises BuildFailedError, and EngineError where the engine or buildx is gone.
    Any exception, ^C above all, ends buildx too.
    """
    import subprocess

    progress = BuildProgress()
    other_lines: list[str] = []
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(log_path) as file:
        log = BuildLog(file)
        process = subprocess.Popen(
            [*tied_to_parent(), _program(endpoint), *endpoint.buildx[1:], *arguments],
            cwd=directory,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        with process:
            try:
                for line in process.stderr or ():
                    if (message := json_lines.parse(line)) is None:
                        other_lines.append(line.rstrip("\n"))
                        with naming(log_path):
                            log.write_line(line)
                        continue
                    for event in progress.feed(message):
                        with naming(log_path):
                            log.write(event)
                        on_event(event)
                process.wait()
            finally:
                # After KeyboardInterrupt or an exception from on_event, the build must not go on alone.
                _end(process)
        if process.returncode:
            raise build_error(endpoint, progress, log, other_lines, process.returncode, str(log_path))
    return progress, log.compiled


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    file = path.open("w", encoding="utf-8", errors="replace")
    try:
        yield file
    finally:
        with naming(path):  # a full disk refuses once more what it has refused
            file.close()


def _program(endpoint: Endpoint) -> str:
    from shutil import which

    if program := which(endpoint.buildx[0]):
        return program
    raise EngineError(f"{endpoint.buildx[0]}, which builds images, was not found", hint=START_HINT)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process that still runs: interrupts, waits, kills. Its output is read meanwhile, so it cannot block."""
    import signal
    import subprocess
    from contextlib import suppress

    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_STOP_WAIT)
    finally:
        process.kill()
