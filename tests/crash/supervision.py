"""A program that runs under supervision: each of its calls that changes something waits until it is decided."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.crash import calls
from tests.crash.calls import Call

_LAUNCHER = Path(__file__).with_name("launcher.py")
_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101  # from linux/seccomp.h
_GO_ON = 1
_LONGEST = 600.0  # seconds
_PAUSE = 20  # milliseconds
_AFTER = 0.05  # seconds in which an engine gets a request whose sender dies


class _Notification(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint64),
        ("process", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("number", ctypes.c_int),
        ("machine", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    )


class _Response(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint64),
        ("value", ctypes.c_int64),
        ("error", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Pending:
    """A call that waits: which thread makes it, with which arguments; ``main`` is the process that was started."""

    call: Call
    thread: int
    main: int
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Fate:
    """What becomes of a call: it is made, it fails with ``error``, or the main process is killed, before it together
    with the one that makes the call, or right ``after``."""

    error: int = 0
    killed: bool = False
    after: bool = False


GO_ON = Fate()
KILLED = Fate(killed=True)
KILLED_AFTER = Fate(killed=True, after=True)


@dataclass(frozen=True)
class Ended:
    """A program that has ended: its exit code (negative: the signal), and what it printed."""

    code: int
    stdout: str
    stderr: str


def run(
    argv: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
    decide: Callable[[Pending], Fate],
    *,
    seconds: float = _LONGEST,
) -> Ended:
    """Runs a program to its end, asking ``decide`` about every call of `calls`, until nothing that it started is left.
    Kills all of it after ``seconds``, and raises TimeoutError."""
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, ours:
        with theirs:
            process = _start(argv, environ, cwd, theirs, out, errors)
        with process:
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            try:
                _Supervisor(descriptors[0], process, decide).serve(time.monotonic() + seconds)
            except BaseException:
                _kill_all(process)
                raise
            finally:
                os.close(descriptors[0])
            code = process.wait()
        return Ended(code, _text(out), _text(errors))


def _start(
    argv: Sequence[str], environ: Mapping[str, str], cwd: Path, channel: socket.socket, out: IO[bytes], err: IO[bytes]
) -> subprocess.Popen[bytes]:
    steps = calls.filter_program().hex()
    launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(channel.fileno()), str(calls.seccomp()), steps]
    return subprocess.Popen(
        [*launcher, *argv],
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        pass_fds=[channel.fileno()],
        start_new_session=True,
    )


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    process.poll()
    os.killpg(process.pid, signal.SIGKILL)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


class _Supervisor:
    """The answers to the kernel about one program."""

    def __init__(self, listener: int, process: subprocess.Popen[bytes], decide: Callable[[Pending], Fate]) -> None:
        self._listener = listener
        self._process = process
        self._decide = decide
        self._calls = calls.by_number()

    def serve(self, end: float) -> None:
        """Answers until no process under the filter is left."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while time.monotonic() < end:
            for _, event in poll.poll(_PAUSE):
                if not event & select.POLLIN:
                    return
                self._serve_next()
            self._process.poll()  # one that nobody has waited for still counts
        raise TimeoutError(f"{self._process.args!r} does not end")

    def _serve_next(self) -> None:
        asked = _Notification()
        try:
            fcntl.ioctl(self._listener, _RECEIVE, asked)
        except FileNotFoundError:  # the process was killed meanwhile
            return
        pending = Pending(self._calls[asked.number], asked.process, self._process.pid, tuple(asked.arguments))
        fate = self._decide(pending)
        if fate.killed and not fate.after:
            # Without an answer: a call that may go on is made, whatever signals wait by then.
            self._process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pending.thread, signal.SIGKILL)
            return
        answer = _Response(asked.id, 0, -fate.error, 0 if fate.error else _GO_ON)
        try:
            fcntl.ioctl(self._listener, _ANSWER, answer)
        except FileNotFoundError:
            return
        if fate.after:
            time.sleep(_AFTER)
            self._process.kill()
