"""Reading a file that anyone may have put there: links, pipes, devices and what is too large are refused, not read."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, largest: int) -> bytes:
    """Returns the content of a plain file of at most ``largest`` bytes. Raises OSError for anything else; it never
    waits, as opening a pipe would."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        # ELOOP: a link; ENXIO: a socket.
        raise _no_file(path) if error.errno in (errno.ELOOP, errno.ENXIO) else error from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _no_file(path)
        content = file.read(largest + 1) if status.st_size <= largest else b""
    if len(content) > largest or status.st_size > largest:
        raise OSError(errno.EFBIG, f"larger than {largest:,} bytes", str(path))
    return content


def _no_file(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is no plain file", str(path))
