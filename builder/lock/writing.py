"""The only writer of images.lock.

A process that is killed at any moment leaves the old file or the new one: the text is written beside it under a fixed
name, forced to the disk, and replaces the old file in one step. A file that a killed writer left under that name means
nothing; the next writer overwrites it.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from builder.errors import LockBusyError, LockError
from builder.lock.model import Lock
from builder.lock.reading import parse, parse_bytes, read_bytes
from builder.lock.text import dump
from builder.storage import atomic_file, file_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.storage.file_lock import FileLock

    Read = Callable[[bytes, str], Lock]


class LockWriter:
    """The right to write images.lock until the block of ``writing`` ends. ``lock`` is the content of the file now."""

    def __init__(self, path: Path, writer: FileLock, read: Read) -> None:
        self._path = path
        self._writer = writer
        self._content = read_bytes(path)
        self.lock = Lock() if self._content is None else read(self._content, path.name)

    def commit(self, lock: Lock) -> bool:
        """Writes ``lock`` to images.lock; returns False where the file holds it already and nothing was written.

        Raises LockError where the file cannot be written or was changed meanwhile, and is then left as it is;
        UsageError for text that is not Unicode; ValueError for a lock that could not be read back (a bug).
        """
        if self._writer.released:
            raise ValueError("images.lock may be written only inside `with writing(…)`")
        if broken := list(lock.broken_rules()):
            raise ValueError("; ".join(broken))
        text = dump(lock)
        content = text.encode()
        if content == self._content:
            return False
        try:
            written = parse(text, self._path.name)
        except LockError as error:
            raise ValueError(f"this would make images.lock unreadable: {error}") from error
        _replace(self._path, self._content, content)
        self._content, self.lock = content, written
        return True


@contextlib.contextmanager
def writing(
    path: Path, *, wait_seconds: float = 30, on_wait: Callable[[], None] | None = None, read: Read = parse_bytes
) -> Iterator[LockWriter]:
    """Locks images.lock for writing and reads it; only ``commit`` writes. Keep the block short: others wait.
    ``on_wait`` is called once when another process writes for longer than a moment. ``read`` makes a lock of the file's
    bytes and its name, for the repair of a damaged one.

    Raises LockBusyError after ``wait_seconds``, and LockError for a lock that is damaged or in a folder that cannot be
    written. A symbolic link is followed.
    """
    try:
        real = path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise LockError(
            f"{path} cannot be followed: {error}",
            hint="replace the link by the file, which git has, or link to where that is",
        ) from None
    with _writer(real.with_name(f".{real.name}.writer"), wait_seconds, on_wait) as writer:
        yield LockWriter(real, writer, read)


@contextlib.contextmanager
def _writer(path: Path, wait_seconds: float, on_wait: Callable[[], None] | None) -> Iterator[FileLock]:
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(file_lock.locked(path, wait_seconds=wait_seconds, on_wait=on_wait))
        except file_lock.LockHeldError as error:
            who = "another process" if error.holder is None else f"process {error.holder}"
            raise LockBusyError(
                f"{who} is writing images.lock, for more than {wait_seconds:g} s now",
                hint="wait for it, or end it if it hangs, and run this again; no file needs to be deleted",
            ) from None
        except file_lock.NoFileLocksError as error:
            message = f"{path} cannot be locked: {error.strerror}"
            raise LockError(message, hint="keep the project on a file system that has locks") from None
        except file_lock.LockFileError as error:
            message = f"{path} cannot be opened: {error.strerror}"
            raise LockError(message, hint=f"images.lock needs a folder that can be written: {path.parent}") from None
        yield lock


def _replace(path: Path, before: bytes | None, content: bytes) -> None:
    try:
        atomic_file.write_alone(path, content, check=lambda: _refuse_changed(path, before))
    except OSError as error:
        raise _cannot_write(path, error) from None


def _refuse_changed(path: Path, before: bytes | None) -> None:
    if read_bytes(path) != before:
        message = f"{path.name} changed while it was being updated, by git or an editor"
        raise LockError(message, hint="nothing was written: run this again")


def _cannot_write(path: Path, error: OSError) -> LockError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "make room (`builder prune` shows what could go) and run this again"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = f"give {path.parent} to the user who runs this, or make it writable"
    else:
        hint = f"look after the disk that holds {path.parent}, and run this again"
    return LockError(f"{path} cannot be written, and is as it was: {error.strerror}", hint=hint)
