"""Writing a file that other programs read: at whatever moment they look, and whenever the writer is killed, it has its
old content or its new one.

All of this outlasts a loss of power as well: the content is forced to the disk before it takes the name, and the name
after. What may vanish at any time is written by `state_file`, which costs less.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import IO, TYPE_CHECKING

from builder.storage import unfinished_file
from builder.storage.named_errors import naming

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# What fsync(2) says of a folder where the file system has nothing to force.
_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM})


def write(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Makes ``path`` hold ``content``, with the permissions ``mode`` or those of any new file. Several processes may
    write it at a time: the last one counts. What a killed one left beside it is removed. Raises OSError, and the file
    is as it was."""
    with unfinished_file.beside(path) as (file, temporary):
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(content)
        put_in_place(file, temporary, path)


def write_alone(path: Path, content: bytes, *, check: Callable[[], None] | None = None) -> None:
    """Makes ``path`` hold ``content``, for one writer at a time: the caller holds a lock. Owner, group and permissions
    of a file that is there stay.

    A writer that is killed leaves ``.NAME.new`` beside, which the next one removes. ``check`` is called when the
    content is on the disk, right before it takes its place; what it raises ends this. Raises OSError. The file is as it
    was then.
    """
    with unfinished_file.of_one_writer(path) as (file, temporary):
        with contextlib.suppress(FileNotFoundError):
            _give_access_of(path.stat(), file.fileno())
        file.write(content)
        put_in_place(file, temporary, path, check=check)


def put_in_place(file: IO[bytes], temporary: Path, path: Path, *, check: Callable[[], None] | None = None) -> None:
    """Gives ``file``, which was written under the name ``temporary`` in the same file system, the name ``path``."""
    file.flush()
    os.fsync(file.fileno())
    if check:
        check()
    temporary.replace(path)
    with contextlib.suppress(OSError):  # the file is in its place: nothing may fail any more
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Forces the names in ``folder`` to the disk; some file systems cannot, and do it by themselves. Raises OSError
    where the disk fails."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with naming(folder):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def make_folder(folder: Path) -> None:
    """Makes ``folder`` with the folders above it, as far as they are missing, and forces their names to the disk.
    Raises OSError."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def _give_access_of(status: os.stat_result, descriptor: int) -> None:
    for owner in (status.st_uid, -1):  # only root may give a file away, but a group of one's own anybody may set
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, owner, status.st_gid)
            break
    with contextlib.suppress(PermissionError):  # a file system without modes
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
