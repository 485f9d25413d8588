"""Writing a large file that the user named: whole under its name, or not there."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from builder.errors import TransferError, UsageError
from builder.storage.atomic_file import put_in_place
from builder.storage.file_lock import open_locked_at_once

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
        raise UsageError(f"{path} is no file", hint="name a file")
    if path.exists() and not replace:
        raise UsageError(f"{path} exists", hint="name another file, or replace it with --force")
    temporary = path.with_name(f".{path.name}.new")
    try:
        file = os.fdopen(open_locked_at_once(temporary), "r+b", buffering=0)
    except BlockingIOError:
        message = f"{path} is being written by another process"
        raise UsageError(message, hint="wait for it, or name another file") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    with file:
        try:
            file.truncate(0)
            yield file
            put_in_place(file, temporary, path)
        except OSError as error:
            hint = _HINTS.get(error.errno or 0, f"look after the disk that holds {path.parent}, and run it again")
            raise TransferError(f"{path} was not written: {error.strerror or error}", hint=hint) from None
        finally:
            # In its place it is no longer here; anywhere before that it is of no use.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
