"""Child processes that never outlive this one."""

from __future__ import annotations


def tied_to_parent() -> list[str]:
    """A prefix of an argument vector with which the kernel sends SIGTERM to the process when its parent dies.

    Without it a child such as buildx or git would go on until it next writes to a closed pipe, which may take an hour.
    setpriv belongs to util-linux, which Debian and Ubuntu always have; elsewhere the prefix is empty.
    """
    from shutil import which

    return ["setpriv", "--pdeathsig", "TERM", "--"] if which("setpriv") else []
