"""Writing a large file that a person named: whole under its name, or not there."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from builder.errors import TransferError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HINTS = {
    errno.ENOSPC: "make room there, or name a file on another disk",
    errno.EDQUOT: "make room there, or name a file on another disk",
    errno.EFBIG: "a FAT disk holds no file above 4 GB: format it as exFAT or ext4",
}


@contextmanager
def written(path: Path, *, replace: bool) -> Iterator[IO[bytes]]:
    """An empty file that takes the name ``path`` when the block has ended well. Whoever is killed in it leaves
    ``.NAME.new`` beside, which the next one writes over.

    Raises UsageError where ``path`` cannot be made, exists (unless ``replace``), or is being written by another
    process; TransferError where the disk does not take all of it.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no file", hint="name a file: it is written in several places at once")
    if path.exists() and not replace:
        raise UsageError(f"{path} exists", hint="name another file, or replace it with --force")
    beside = path.with_name(f".{path.name}.new")
    try:
        file = os.fdopen(os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    with file:
        _hold(file, beside, path)
        try:
            file.truncate(0)
            yield file
            os.fsync(file.fileno())
            beside.replace(path)
        except OSError as error:
            hint = _HINTS.get(error.errno or 0, f"look after the disk that holds {path.parent}, and run it again")
            raise TransferError(f"{path} was not written: {error.strerror or error}", hint=hint) from None
        finally:
            # In its place it is no longer here; anywhere before that it is of no use.
            with suppress(OSError):
                beside.unlink(missing_ok=True)
    _sync(path.parent)


def _hold(file: IO[bytes], beside: Path, path: Path) -> None:
    """Keeps other processes from the file. One that has just finished made another file of the one that was opened."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        same = beside.exists() and beside.stat().st_ino == os.fstat(file.fileno()).st_ino
    except BlockingIOError:
        same = False
    if not same:
        raise UsageError(f"{path} is being written by another process", hint="wait for it, or name another file")


def _sync(folder: Path) -> None:
    # The file is in its place: some file systems cannot sync a folder, and nothing is to fail any more.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
