"""An operating system lock: one process at a time may write, and one that dies lets go, whatever killed it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from builder.errors import LockBusyError, LockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_TELL_AFTER = 0.3  # seconds; a writer holds the lock for some tens of milliseconds
_LONGEST_PAUSE = 0.02  # seconds between two tries


class Hold:
    """Proof that this process holds a lock; ``ended`` once it has let go."""

    ended = False


@contextlib.contextmanager
def held(path: Path, *, wait_seconds: float, on_wait: Callable[[], None] | None) -> Iterator[Hold]:
    """Holds ``path``, a file made where it is missing and never deleted: a waiter would go on waiting for the deleted
    one while others take the next. ``on_wait`` is called once when it takes longer than a moment. Raises LockBusyError
    after ``wait_seconds``, and LockError where the file cannot be opened or locked."""
    hold = Hold()
    descriptor = _open(path)
    try:
        _wait(descriptor, path, wait_seconds, on_wait)
        _sign(descriptor, f"{os.getpid()}\n")
        try:
            yield hold
        finally:
            hold.ended = True
            _sign(descriptor, "")
            # Closing alone would leave it to a process that was just forked from this one until that has closed it too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except OSError as error:
        if isinstance(error, PermissionError):  # made by another user, root for one: to hold it, reading is enough
            with contextlib.suppress(OSError):
                return os.open(path, os.O_RDONLY | flags)
        message = f"{path} cannot be opened: {error.strerror}"
        raise LockError(message, hint=f"images.lock needs a folder that can be written: {path.parent}") from None


def _wait(descriptor: int, path: Path, wait_seconds: float, on_wait: Callable[[], None] | None) -> None:
    started = time.monotonic()
    pause = 0.001
    while not _take(descriptor, path):
        waited = time.monotonic() - started
        if waited >= wait_seconds:
            raise _busy(descriptor, wait_seconds)
        if on_wait and waited >= _TELL_AFTER:
            on_wait()
            on_wait = None
        time.sleep(min(pause, wait_seconds - waited))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _take(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        message = f"{path} cannot be locked: {error.strerror}"
        raise LockError(message, hint="keep the project on a file system that has locks") from None
    return True


def _busy(descriptor: int, wait_seconds: float) -> LockBusyError:
    holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
    who = f"process {holder}" if holder.isdecimal() else "another process"
    return LockBusyError(
        f"{who} is writing images.lock, for more than {wait_seconds:g} s now",
        hint="wait for it, or end it if it hangs, and run this again; no file needs to be deleted",
    )


def _sign(descriptor: int, who: str) -> None:
    with contextlib.suppress(OSError):  # a help to people only: a full disk is no reason to stop here
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, who.encode(), 0)
