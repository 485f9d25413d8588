"""The system calls by which a process changes something, for two kinds of machines, and the kernel's filter that holds
each of them until this side has decided (seccomp_unotify(2)).

Nothing in the program under test is replaced: what is enumerated is what reaches the kernel, whoever calls it, the
programs that it starts (git, buildx) included.
"""

from __future__ import annotations

import os
import platform
import struct
from dataclasses import dataclass

# name: (number on x86-64, number on aarch64, its subject). A call that a machine does not have is None.
# subject: "fd N", "path N", or "at N M" (the folder's descriptor, and the path in it), by the places of the arguments.
_TABLE: dict[str, tuple[int | None, int | None, tuple[str, ...]]] = {
    "open": (2, None, ("path 0",)),
    "openat": (257, 56, ("at 0 1",)),
    "write": (1, 64, ("fd 0",)),
    "pwrite64": (18, 68, ("fd 0",)),
    "writev": (20, 66, ("fd 0",)),
    "pwritev": (296, 70, ("fd 0",)),
    "sendfile": (40, 71, ("fd 0",)),
    "copy_file_range": (326, 285, ("fd 2",)),
    "fallocate": (285, 47, ("fd 0",)),
    "truncate": (76, 45, ("path 0",)),
    "ftruncate": (77, 46, ("fd 0",)),
    "fsync": (74, 82, ("fd 0",)),
    "fdatasync": (75, 83, ("fd 0",)),
    "rename": (82, None, ("path 0", "path 1")),
    "renameat": (264, 38, ("at 0 1", "at 2 3")),
    "renameat2": (316, 276, ("at 0 1", "at 2 3")),
    "link": (86, None, ("path 0", "path 1")),
    "linkat": (265, 37, ("at 0 1", "at 2 3")),
    "symlink": (88, None, ("path 1",)),
    "symlinkat": (266, 36, ("at 1 2",)),
    "unlink": (87, None, ("path 0",)),
    "unlinkat": (263, 35, ("at 0 1",)),
    "mkdir": (83, None, ("path 0",)),
    "mkdirat": (258, 34, ("at 0 1",)),
    "rmdir": (84, None, ("path 0",)),
    "chmod": (90, None, ("path 0",)),
    "fchmod": (91, 52, ("fd 0",)),
    "fchmodat": (268, 53, ("at 0 1",)),
    "fchmodat2": (452, 452, ("at 0 1",)),
    "chown": (92, None, ("path 0",)),
    "fchown": (93, 55, ("fd 0",)),
    "fchownat": (260, 54, ("at 0 1",)),
    "utimensat": (280, 88, ("at 0 1",)),
    "sendto": (44, 206, ()),
    "execve": (59, 221, ("path 0",)),
    "exit_group": (231, 94, ()),
}
# The kernel's name of the machine, and seccomp(2) on it.
_MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}

_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # from linux/bpf_common.h
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # where struct seccomp_data has them
OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FLAGS_OF_OPEN = {"open": 1, "openat": 2}


@dataclass(frozen=True)
class Call:
    """A system call, and which of its arguments say what it changes."""

    name: str
    subjects: tuple[str, ...]

    @property
    def flags(self) -> int | None:
        """The place of the flags with which a file is opened."""
        return _FLAGS_OF_OPEN.get(self.name)


def seccomp() -> int:
    """The number of seccomp(2) on this machine."""
    return _MACHINES[platform.machine()][1]


def by_number() -> dict[int, Call]:
    """The calls of the table that this machine has."""
    column = list(_MACHINES).index(platform.machine())
    rows = [(row[:2][column], Call(name, row[2])) for name, row in _TABLE.items()]
    return {number: call for number, call in rows if number is not None}


def filter_program() -> bytes:
    """A program for the kernel that asks about each of the calls, and lets all others pass. A file that is opened to be
    read passes as well: there are thousands of those."""
    program = [_step(_LOAD, _MACHINE), _step(_EQUAL, _MACHINES[platform.machine()][0], 1, 0), _step(_RETURN, _ALLOW)]
    for number, call in by_number().items():
        program.append(_step(_LOAD, _NUMBER))
        if call.flags is None:
            program += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _NOTIFY)]
        else:
            program.append(_step(_EQUAL, number, 0, 4))
            program.append(_step(_LOAD, _ARGUMENTS + 8 * call.flags))
            program.append(_step(_ANY_BIT, OPENED_TO_WRITE, 0, 1))
            program += [_step(_RETURN, _NOTIFY), _step(_RETURN, _ALLOW)]
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
