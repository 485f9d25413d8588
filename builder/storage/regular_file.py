"""Reading a file that anyone may have put there: links, pipes, devices and what is too large are refused, not read."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PIECE = 1 << 16


def read(path: Path | str, largest: int) -> bytes:
    """Returns the content of a plain file of at most ``largest`` bytes. Raises OSError for anything else; it never
    waits, as opening a pipe would."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        # ELOOP: a link; ENXIO: a socket.
        raise _no_file(path) if error.errno in (errno.ELOOP, errno.ENXIO) else error from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise _no_file(path)
        content = _up_to(descriptor, largest + 1, status.st_size) if status.st_size <= largest else b""
    finally:
        os.close(descriptor)
    if len(content) > largest or status.st_size > largest:
        raise OSError(errno.EFBIG, f"larger than {largest:,} bytes", str(path))
    return content


def _up_to(descriptor: int, largest: int, size: int) -> bytes:
    """At most ``largest`` bytes of a file of this size. It may grow meanwhile, and those of the kernel tell none."""
    content = os.read(descriptor, min(size + 1, largest))
    while len(content) not in (size, largest) and (more := os.read(descriptor, min(largest - len(content), _PIECE))):
        content += more
    return content


def _no_file(path: Path | str) -> OSError:
    return OSError(errno.EINVAL, "it is no plain file", str(path))
