"""A program of others that runs for a limited time and prints a limited amount, and is gone afterwards with all that it
started.

Time is that of the monotonic clock: the other one may jump while something is measured.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder import child_process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LARGEST_OUTPUT = 1 << 20
_REAPER = Path(__file__).with_name("reaper.py")
_TICK_SECONDS = 0.25
_GRACE_SECONDS = 5.0
_CHUNK = 1 << 16


@dataclass(frozen=True)
class EndedProcess:
    """A process that has ended. ``cause`` tells why: ``itself``, or that its ``time`` was up or its ``output`` too
    long. ``exit_code`` is negative for a signal. ``output`` and ``messages`` are its standard output and error, as far
    as they fit the limit."""

    exit_code: int
    cause: Literal["itself", "time", "output"]
    output: bytes
    messages: bytes
    seconds: float

    @property
    def last_lines(self) -> str:
        """The last lines that it printed."""
        text = (self.messages.strip() or self.output.strip()).decode(errors="replace")
        return "\n".join(text.splitlines()[-5:])


def run(
    argv: Sequence[str],
    *,
    folder: Path,
    environ: Mapping[str, str],
    seconds: float,
    largest: int = LARGEST_OUTPUT,
    tick: Callable[[float], None] | None = None,
) -> EndedProcess:
    """Runs ``argv`` in ``folder`` for ``seconds`` at most; it may print ``largest`` bytes. ``tick`` is called a few
    times a second with the seconds so far; what it raises ends the process. A program that is not there ends with
    127."""
    began = time.monotonic()
    process = subprocess.Popen(
        [*child_process.tied_to_parent(), sys.executable, "-I", str(_REAPER), *argv],
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        cause, output, messages = _watch(process, began, seconds, largest, tick)
    finally:
        _end_group(process)
    return EndedProcess(process.returncode, cause, output, messages, time.monotonic() - began)


def _watch(
    process: subprocess.Popen[bytes],
    began: float,
    seconds: float,
    largest: int,
    tick: Callable[[float], None] | None,
) -> tuple[Literal["itself", "time", "output"], bytes, bytes]:
    streams = [stream for stream in (process.stdout, process.stderr) if stream]
    kept = {stream.fileno(): bytearray() for stream in streams}
    output, messages = (kept[stream.fileno()] for stream in streams)
    ended_at: float | None = None
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while True:
            _read(selector, kept)
            passed = time.monotonic() - began
            if len(output) + len(messages) > largest:
                return "output", bytes(output[:largest]), bytes(messages[:largest])
            if passed > seconds:
                return "time", bytes(output), bytes(messages)
            if tick:
                tick(passed)
            if process.poll() is not None:
                # Whatever it started in the background may keep its output open for ever.
                ended_at = ended_at or passed
                if not selector.get_map() or passed - ended_at > 1:
                    return "itself", bytes(output), bytes(messages)


def _read(selector: selectors.BaseSelector, kept: dict[int, bytearray]) -> None:
    """Reads what there is, and waits a moment where there is nothing."""
    if not selector.get_map():
        time.sleep(_TICK_SECONDS / 10)
    for key, _ in selector.select(_TICK_SECONDS):
        content = os.read(key.fd, _CHUNK)
        kept[key.fd] += content
        if not content:
            selector.unregister(key.fileobj)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that is left of its session: asks first, and then kills."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    _signal(process, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
