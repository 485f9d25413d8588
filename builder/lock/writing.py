"""The one writer of images.lock.

Whoever is killed at whatever moment leaves the old file or the new one: the text goes to one fixed name beside it,
is forced to the disk and then takes the place of the old file in one step. A file left under that fixed name by a
writer that was killed means nothing and is written over by the next.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from builder.errors import LockError
from builder.lock.model import Lock
from builder.lock.reading import parse, parse_bytes, read_bytes
from builder.lock.rules import broken_rules
from builder.lock.text import dump
from builder.storage.file_lock import held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.storage.file_lock import Hold

    Read = Callable[[bytes, str], Lock]


class Transaction:
    """The right to write images.lock, from ``writing`` and until its block ends. ``lock`` is what the file says now."""

    def __init__(self, path: Path, hold: Hold, read: Read) -> None:
        self._path = path
        self._hold = hold
        self._content = read_bytes(path)
        self.lock = Lock() if self._content is None else read(self._content, path.name)

    def commit(self, lock: Lock) -> bool:
        """Makes images.lock say ``lock``; False where it does already and nothing was written.

        Raises LockError where it cannot be written or somebody changed it meanwhile, then the file is as it was;
        UsageError for text that is not Unicode; ValueError for a lock that could not be read back (a bug).
        """
        if self._hold.ended:
            raise ValueError("images.lock may be written only inside `with writing(…)`")
        if broken := list(broken_rules(lock)):
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
) -> Iterator[Transaction]:
    """Holds images.lock for writing and reads it; nothing is written but by ``commit``. Keep the block short: others
    wait. ``on_wait`` is called once when somebody else writes for longer than a moment. ``read`` makes a lock of the
    file's bytes and its name, for who mends one that is damaged.

    Raises LockBusyError after ``wait_seconds``, and LockError for a lock that is damaged or in a folder that cannot be
    written. A symbolic link is followed.
    """
    try:
        real = path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise LockError(f"{path} cannot be followed: {error}", hint="make it a file") from None
    with held(real.with_name(f".{real.name}.writer"), wait_seconds=wait_seconds, on_wait=on_wait) as hold:
        yield Transaction(real, hold, read)


def _replace(path: Path, before: bytes | None, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.new")
    try:
        try:
            _write(beside, content, like=path)
            _refuse_changed(path, before)
            beside.replace(path)
        finally:
            # In its place it is no longer here; anywhere before that it is litter.
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from None
    _sync_folder(path.parent)


def _refuse_changed(path: Path, before: bytes | None) -> None:
    if read_bytes(path) != before:
        message = f"{path.name} changed while it was being updated, by git or an editor"
        raise LockError(message, hint="nothing was written: run this again")


def _write(path: Path, content: bytes, *, like: Path) -> None:
    # Deleted rather than opened: what a killed writer left may belong to another user.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        with contextlib.suppress(FileNotFoundError):
            _give_access_of(like.stat(), descriptor)
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _give_access_of(found: os.stat_result, descriptor: int) -> None:
    for owner in (found.st_uid, -1):  # only root may give a file away, but a group of one's own anybody may set
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, owner, found.st_gid)
            break
    with contextlib.suppress(PermissionError):  # a file system without modes
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode))


def _sync_folder(folder: Path) -> None:
    # The new file is in its place: from here on nothing may fail, and some file systems cannot sync a folder.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _cannot_write(path: Path, error: OSError) -> LockError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "make room (`builder prune` shows what could go) and run this again"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = f"give {path.parent} to the user who runs this, or make it writable"
    else:
        hint = f"look after the disk that holds {path.parent}, and run this again"
    return LockError(f"{path} cannot be written, and is as it was: {error.strerror}", hint=hint)
