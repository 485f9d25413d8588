"""Child processes that never outlive this one."""

from __future__ import annotations

from typing import BinaryIO


def memory_file() -> BinaryIO:
    """A file for what a child process reads or writes. It has no name and no disk: nothing of it is left however this
    process ends, and no folder for temporary files is asked for first."""
    import os

    return os.fdopen(os.memfd_create("builder"), "w+b")


def tied_to_parent() -> list[str]:
    """Returns a prefix of an argument vector that makes the kernel send SIGTERM to the process when its parent dies.

    Without it a child such as buildx or git runs on until it next writes to a closed pipe, which may take an hour.
    setpriv belongs to util-linux, which Debian and Ubuntu always have; elsewhere the prefix is empty.
    """
    from shutil import which

    return ["setpriv", "--pdeathsig", "TERM", "--"] if which("setpriv") else []
