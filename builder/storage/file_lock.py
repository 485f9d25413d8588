"""Advisory locks of the operating system on files and folders: one process at a time holds one, and a process that dies
lets go, whatever killed it.

Nothing here knows what is locked: errors are OSError and `LockHeldError`, and the callers say what they mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_TELL_AFTER = 0.3  # seconds; most locks are held for some tens of milliseconds
_LONGEST_PAUSE = 0.02  # seconds between two tries
_FOR_EVER = float("inf")
_READ_AND_WRITE = os.O_RDWR | os.O_CREAT


class LockHeldError(Exception):
    """One other process held the lock for longer than this one would wait; ``holder`` is its process id, None where
    it did not leave any."""

    def __init__(self, holder: int | None) -> None:
        super().__init__(holder)
        self.holder = holder


class LockFileError(OSError):
    """A lock file cannot be opened; ``strerror`` says why."""


class NoFileLocksError(LockFileError):
    """The file system refuses to lock a file."""


class FileLock:
    """Proof that this process holds a lock, until ``released``."""

    released = False


@contextlib.contextmanager
def locked(
    path: Path, *, wait_seconds: float = _FOR_EVER, on_wait: Callable[[], None] | None = None
) -> Iterator[FileLock]:
    """Holds the lock file ``path``, which is made where it is missing and holds the process id of its holder.

    It is never deleted: a waiter would go on waiting for the deleted one while others take the next. ``on_wait`` is
    called once when it takes longer than a moment. Raises LockHeldError after another process has held it for
    ``wait_seconds`` on end (of many that take turns each is waited for), NoFileLocksError where the file cannot be
    locked, and LockFileError where it cannot be opened, as through a symbolic link.
    """
    lock = FileLock()
    descriptor = _open(path)
    try:
        _wait(descriptor, wait_seconds, on_wait)
        _write_holder(descriptor, f"{os.getpid()}\n")
        try:
            yield lock
        finally:
            lock.released = True
            _write_holder(descriptor, "")
            _unlock(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def folder_locked(path: Path) -> Iterator[None]:
    """Holds a folder itself, under whatever name it has meanwhile. Raises BlockingIOError at once where another process
    holds it, and OSError where it cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
        _unlock(descriptor)
    finally:
        os.close(descriptor)


def open_locked_to_append(path: Path) -> int:
    """A descriptor of the file ``path``, made where it is missing, which writes at its end: it is locked for as long as
    it is open. Waits for other processes; a file that its holder renamed or removed meanwhile is opened anew."""
    while (descriptor := _open_and_lock(path, os.O_APPEND, fcntl.LOCK_EX)) is None:
        continue
    return descriptor


def open_locked_at_once(path: Path) -> int:
    """A descriptor of the file ``path``, made where it is missing, for reading and writing: it is locked for as long as
    it is open. Raises BlockingIOError where another process holds the file, or has just finished with it."""
    descriptor = _open_and_lock(path, 0, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if descriptor is None:
        raise BlockingIOError
    return descriptor


def lock_new(path: Path, descriptor: int) -> bool:
    """Locks a file that this process has just made, for as long as it is open; False where another one removed it as
    `remove_unlocked` does. Where the file system has no locks, no other can do that."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return _is_at(path, descriptor)


def remove_unlocked(path: Path) -> None:
    """Removes a file that no process holds. One that is held, another user's, or gone meanwhile is left."""
    with contextlib.suppress(OSError), _held_at_once(path):
        path.unlink()


def is_held(path: Path) -> bool:
    """True for a file that another process holds, or that cannot be asked."""
    try:
        with _held_at_once(path):
            return False
    except OSError:
        return True


@contextlib.contextmanager
def _held_at_once(path: Path) -> Iterator[None]:
    descriptor = regular_file.opened(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _open_and_lock(path: Path, flags: int, operation: int) -> int | None:
    """None where the locked file is no longer the one at ``path``."""
    descriptor = regular_file.opened(path, _READ_AND_WRITE | flags)
    is_there = False
    try:
        fcntl.flock(descriptor, operation)
        is_there = _is_at(path, descriptor)
    finally:
        if not is_there:
            os.close(descriptor)
    return descriptor if is_there else None


def _open(path: Path) -> int:
    try:
        return regular_file.opened(path, _READ_AND_WRITE)
    except OSError as error:
        if isinstance(error, PermissionError):  # made by another user, root for one: to hold it, reading is enough
            with contextlib.suppress(OSError):
                return regular_file.opened(path, os.O_RDONLY)
        raise LockFileError(error.errno, error.strerror) from None


def _wait(descriptor: int, wait_seconds: float, on_wait: Callable[[], None] | None) -> None:
    started = time.monotonic()
    holder, since = _holder(descriptor), started
    pause = 0.001
    while not _try_lock(descriptor):
        now = time.monotonic()
        if (current := _holder(descriptor)) != holder:
            holder, since = current, now
        if now - since >= wait_seconds:
            raise LockHeldError(holder)
        if on_wait and now - started >= _TELL_AFTER:
            on_wait()
            on_wait = None
        time.sleep(min(pause, wait_seconds - (now - since)))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise NoFileLocksError(error.errno, error.strerror) from None
    return True


def _unlock(descriptor: int) -> None:
    # Closing alone would leave it to a process that was just forked from this one until that has closed it too.
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None


def _write_holder(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):  # for messages only: a full disk is no reason to stop here
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
