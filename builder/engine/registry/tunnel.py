"""The ssh tunnel from a node's engine to a registry on this machine's loopback."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.child_process import tied_to_parent
from builder.engine.client import ssh
from builder.errors import TransferError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from builder.engine.client.endpoint import Endpoint

# ssh's message after it requested any free port of the other machine.
_ALLOCATED = re.compile(r"Allocated port (\d+) for remote forward")
_OPTIONS = (
    *("-N", "-T"),
    *("-o", "ExitOnForwardFailure=yes"),
    *("-o", "BatchMode=yes"),
    *("-o", "ServerAliveInterval=15"),
    # A connection that others share would keep the forwarding when this copy ends.
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
    *("-o", "LogLevel=INFO"),
)


def require_route(endpoint: Endpoint) -> None:
    """Raises TransferError for a node whose engine cannot reach a registry on this machine's loopback."""
    if not endpoint.host.startswith(("unix://", "ssh://")):
        raise TransferError(
            f"the engine at {endpoint.host} cannot reach a registry on this machine, and builder.yaml sets no other",
            hint="set `registry: HOST:PORT/PATH` in builder.yaml to one that both reach, or write the node's engine as "
            "ssh://USER@HOST",
        )


@contextmanager
def to_loopback(endpoint: Endpoint, port: int) -> Iterator[int]:
    """Forwards a port of the node's own 127.0.0.1 to ``port`` on this machine's during the block; yields the former.

    A node on this machine (unix://) needs no tunnel; to one behind ssh, a reverse tunnel is opened. Raises
    TransferError as `require_route` does, and where ssh fails.
    """
    require_route(endpoint)
    if endpoint.host.startswith("unix://"):
        yield port
        return
    import subprocess

    options = [*_OPTIONS, "-R", f"127.0.0.1:0:127.0.0.1:{port}"]
    process = subprocess.Popen(
        [*tied_to_parent(), *ssh.argv(endpoint.host, options, [])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    with process:
        try:
            yield _allocated(endpoint, process)
        finally:
            process.terminate()


def _allocated(endpoint: Endpoint, process: subprocess.Popen[str]) -> int:
    lines = []
    for line in process.stderr or ():
        if match := _ALLOCATED.search(line):
            return int(match[1])
        lines.append(line.strip())
    raise TransferError(
        f"no tunnel to {endpoint.host}: {'; '.join(lines[-3:]) or 'ssh ended'}",
        hint="does `ssh` get there without a password, and does its sshd allow TCP forwarding?",
    )
