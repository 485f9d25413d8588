"""Child processes that never outlive this one."""

from __future__ import annotations


def tied_to_parent() -> list[str]:
    """Returns a prefix of an argument vector that makes the kernel send SIGTERM to the process when its parent dies.

    Without it a child such as buildx or git runs on until it next writes to a closed pipe, which may take an hour.
    setpriv belongs to util-linux, which Debian and Ubuntu always have; elsewhere the prefix is empty.
    """
    from shutil import which

    return ["setpriv", "--pdeathsig", "TERM", "--"] if which("setpriv") else []
