"""Reading a file that anyone may have put there: links, pipes, devices and what is too large are refused, not read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_PIECE = 1 << 16
_STATE = ".builder"


def read(path: Path | str, largest: int) -> bytes:
    """Returns the content of a plain file of at most ``largest`` bytes. Raises OSError for anything else; it never
    waits, as opening a pipe would."""
    try:
        descriptor = opened(path, os.O_RDONLY)
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


def opened(path: Path | str, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a file, which is no link. In a state folder, which may have come along with other files, no
    folder on the way there is one either, at the very moment of opening; the state folder itself may be on another
    disk. It waits for nobody: a pipe is opened at once, or not at all. Raises OSError."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    parts = Path(path).parts
    if _STATE not in parts[:-1]:
        return os.open(path, flags, mode)
    at = parts.index(_STATE) + 1
    try:
        folder = os.open(Path(*parts[:at]), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in parts[at:-1]:
                inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            return os.open(parts[-1], flags, mode, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _up_to(descriptor: int, largest: int, size: int) -> bytes:
    """At most ``largest`` bytes of a file of this size. It may grow meanwhile, and those of the kernel tell none."""
    content = os.read(descriptor, min(size + 1, largest))
    while len(content) not in (size, largest) and (more := os.read(descriptor, min(largest - len(content), _PIECE))):
        content += more
    return content


def _no_file(path: Path | str) -> OSError:
    return OSError(errno.EINVAL, "it is no plain file", str(path))
