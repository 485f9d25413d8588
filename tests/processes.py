"""Child processes of a test, a folder that processes of other users may use, and waits for what processes do."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


BUSY = 120.0
"""The seconds after which what does not happen never will, however busy the machine is."""

GROWING = (1, 10, 60)
"""Time limits, in seconds, for what has to do something before it is stopped: where it had not come to that, a test
tries the next one."""


def until(holds: Callable[[], object], what: str) -> None:
    """Waits until ``holds`` is true. Fails the test if it never is; ``what`` says what should have happened."""
    end = time.monotonic() + BUSY
    while not holds():
        assert time.monotonic() < end, f"not within {BUSY:g} seconds: {what}"
        time.sleep(0.02)


def await_lock_wait(process: int, count: int = 1) -> None:
    """Waits until so many threads of a process wait for the lock of a file, which the kernel lists with an arrow
    (proc_locks(5))."""

    def waiting() -> bool:
        rows = [row.split() for row in Path("/proc/locks").read_text(encoding="utf-8").splitlines()]
        return sum(row[1] == "->" and row[5] == str(process) for row in rows) >= count

    until(waiting, f"{count} threads of process {process} wait for a lock")


def is_gone(process: int) -> bool:
    """True if the process has ended, even if its parent has not yet heard of it."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in {"Z", "X"}


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """An empty folder that every user can read, unlike pytest's folders."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def fork() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Starts a child process that runs a function and ends, and returns its process id. No child outlives the test."""
    children: list[int] = []

    def start(run: Callable[[], object]) -> int:
        child = os.fork()
        if not child:
            try:
                run()
                os._exit(0)
            except BaseException:  # noqa: BLE001  # a child that returned would run the rest of the tests
                traceback.print_exc()
                os._exit(1)
        children.append(child)
        return child

    yield start
    for child in children:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
