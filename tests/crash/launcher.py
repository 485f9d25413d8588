"""Puts itself under a filter of `tests.crash.calls`, hands the kernel's questions to whoever started it, and becomes
another program: ``python launcher.py SOCKET SECCOMP FILTER PROGRAM ARGUMENT…``.

It runs by its path, without the rest of the tests.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys

_NO_NEW_PRIVILEGES = 38  # of prctl(2): what lets any user set a filter
_SET_FILTER = 1
_NEW_LISTENER = 1 << 3
_ONLY_KILLED = 1 << 5  # a signal that is handled does not interrupt a call that waits for its answer


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def main(channel: str, seccomp: str, steps: str, *argv: str) -> None:
    code = bytes.fromhex(steps)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    program = _Program(len(code) // 8, code)
    listener = libc.syscall(int(seccomp), _SET_FILTER, _NEW_LISTENER | _ONLY_KILLED, ctypes.byref(program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    with socket.socket(fileno=int(channel)) as out:
        socket.send_fds(out, [b"."], [listener])
    os.close(listener)
    os.execvp(argv[0], argv)  # noqa: S606


main(*sys.argv[1:])
