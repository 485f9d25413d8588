"""A small disk for one process, which can be filled and made read-only, whoever runs the tests.

Root mounts it; others do in a user namespace of their own. Where a machine forbids that too (Ubuntu's AppArmor does),
the system calls that write fail as they would on such a disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

FILLER = "filler"
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_PRIVATE, _RECURSIVE, _READ_ONLY, _AGAIN = 1 << 18, 1 << 14, 1, 1 << 5
_SIZE = 64 * 1024

Small = tuple[Path, Callable[[], object], Callable[[], object]]


@contextlib.contextmanager
def small(parent: Path) -> Iterator[Small]:
    """A folder on a disk of its own, what fills it, and what makes room again. For a child process: nobody else sees
    the disk, and it is gone with the process."""
    folder = parent / "disk"
    folder.mkdir()
    if _mounted(folder):
        yield folder, lambda: _fill(folder), (folder / FILLER).unlink
        return
    with contextlib.ExitStack() as stack:
        full = mock.patch("os.fsync", _failing(errno.ENOSPC))
        yield folder, lambda: stack.enter_context(full), stack.close


def make_read_only(folder: Path) -> str:
    """From now on nothing can be written there; returns what the system says of it."""
    if os.path.ismount(folder):
        _call("mount", b"none", os.fsencode(folder), None, _AGAIN | _READ_ONLY, None)
        return os.strerror(errno.EROFS)
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.setuid(65534)  # permissions mean nothing to root
    return os.strerror(errno.EACCES)


def _mounted(folder: Path) -> bool:
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", _NEW_MOUNTS if user == 0 else _NEW_MOUNTS | _NEW_USER)
        if user:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        _call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
        _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={_SIZE}".encode())
    except OSError:
        return False
    return True


def _call(name: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)


def _fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / FILLER).open("wb", buffering=0) as filler:
        while True:
            filler.write(b"." * 4096)


def _failing(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail
