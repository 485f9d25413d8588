"""A shell script run on the machine of a node: by ssh, or here where the node's engine is this machine's own."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.child_process import tied_to_parent
from builder.engine.client import ssh
from builder.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Nothing can be typed here: a password, or a question about a host key, is an answer.
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
HERE = "unix://"
_SSH_FAILED = 255


def is_here(host: str) -> bool:
    """True if the engine at ``host`` is one of this machine."""
    return host.startswith(HERE)


def run(environ: Mapping[str, str], host: str, script: str, arguments: Sequence[str] = (), timeout: float = 60) -> str:
    """Runs ``script`` with ``sh`` on the machine of the engine at ``host`` and returns what it prints. ``arguments``
    must be plain words, as ssh gives them to a shell.

    Raises NodeError where the machine cannot be reached, or the script ends with an error.
    """
    command = ["sh", "-s", "--", *arguments]
    if is_here(host):
        argv = command
    elif urlsplit(host).scheme == "ssh":
        argv = ssh.argv(host, _OPTIONS, command)
    else:
        raise NodeError(
            f"its engine is reached at {host}, and its machine not at all",
            hint="name the node in builder.yaml as ssh://USER@HOST",
        )
    try:
        done = subprocess.run(
            [*tied_to_parent(), *argv],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environ),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NodeError(f"{_name(host)} had not answered after {timeout:g} s") from None
    except FileNotFoundError as error:
        raise NodeError(f"this machine has no program `{error.filename}`") from None
    if done.returncode:
        raise _error(host, done)
    return done.stdout


def _error(host: str, done: subprocess.CompletedProcess[str]) -> NodeError:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reason = lines[-1] if lines else f"it ended with {done.returncode}"
    if done.returncode != _SSH_FAILED or is_here(host):
        return NodeError(f"{_name(host)}: {reason}")
    if "Host key verification failed" in done.stderr:
        hint = f"`ssh {_login(host)}` once, and compare the key that it shows"
    elif "Permission denied" in done.stderr:
        hint = f"`ssh-copy-id {_login(host)}` lets this user in without a password"
    else:
        hint = f"does `ssh {_login(host)}` let you in without a password?"
    return NodeError(f"ssh to {_name(host)} fails: {reason}", hint=hint)


def _name(host: str) -> str:
    return "this machine" if is_here(host) else urlsplit(host).hostname or host


def _login(host: str) -> str:
    address = urlsplit(host)
    user = f"{address.username}@" if address.username else ""
    return f"{f'-p {address.port} ' if address.port else ''}{user}{address.hostname}"
