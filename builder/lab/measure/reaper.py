"""Runs a program, and ends all that it has started when it ends: also what left its process group for another session.

A program of its own, for an isolated Python: ``reaper.py PROGRAM [ARGUMENT…]``. Orphans of its descendants become its
children (prctl(2), PR_SET_CHILD_SUBREAPER), so that none is lost. It ends as the program did. SIGTERM, which the
program gets with its group, ends everything after a grace of seconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 3.0
_LONGEST_END = 10.0
_NOT_FOUND = 127


def _main(argv: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        try:
            child = subprocess.Popen(argv)
        except OSError as error:
            sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
            return _NOT_FOUND
        code = child.wait()
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_SECONDS)
        code = -signal.SIGTERM
    _end_all()
    return code


def _end_all() -> None:
    """Kills every child until there is none: those of a killed one become our own."""
    end = time.monotonic() + _LONGEST_END
    while time.monotonic() < end and (children := _children()):
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.005)


def _children() -> list[int]:
    own, children = str(os.getpid()), []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in parentheses may hold anything: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            if parent == own:
                children.append(int(stat.parent.name))
    return children


def _end_as(code: int) -> None:
    """Ends with this exit code, or by this signal where it is negative."""
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _end_as(_main(sys.argv[1:]))
