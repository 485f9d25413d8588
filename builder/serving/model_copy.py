"""Copying a model from this machine's cache into a node's, with rsync over ssh: only what the node lacks is sent."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.base import hub_cache
from builder.base.errors import SourceError, UsageError
from builder.base.events import TransferProgress
from builder.base.processes import memory_file
from builder.engine import client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.base.events import Report
    from builder.definitions.configuration import Node


# Relative to the user's home on the node.
_DEFAULT_HOME = ".cache/huggingface"


@dataclass(frozen=True)
class Destination:
    """A node's folder of models: the ``host`` as ssh takes it (USER@HOST), its ``port``, and the folder ``hub``,
    relative to the user's home there unless it is absolute."""

    node: str
    host: str
    port: int | None
    hub: str


def destination(environ: Mapping[str, str], node: Node) -> Destination:
    """Returns the destination of models for ``node``. Raises UsageError if the node is not reached over ssh."""
    address = client.of_node(environ, node.name, node.engine).host
    parts = urlsplit(address)
    if parts.scheme != "ssh" or not parts.hostname or parts.netloc.startswith("-") or "@-" in parts.netloc:
        raise UsageError(
            f"node {node.name} is reached at {address}, and models go to nodes over ssh",
            hint=f"name it in builder.yaml as ssh://USER@HOST, or run `builder download` on {node.name}",
        )
    home = (node.models or _DEFAULT_HOME).removeprefix("~/").rstrip("/")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Destination(node.name, f"{parts.username}@{host}" if parts.username else host, parts.port, f"{home}/hub")


def require_rsync() -> None:
    """Raises UsageError if this machine has no rsync."""
    if shutil.which("rsync") is None:
        raise UsageError(
            "rsync is not installed on this machine, and models go to nodes by it",
            hint="`sudo apt-get install rsync`, here and on the nodes",
        )


def copy(environ: Mapping[str, str], model: str, to: Destination, report: Report) -> None:
    """Brings the node's copy of ``model`` up to this machine's; older revisions there stay."""
    cached_model = hub_cache.find_model(environ, model)
    total = cached_model.size if cached_model else 0
    folder = hub_cache.folder(environ, model)
    argv = [
        "rsync",
        *("--recursive", "--links", "--perms", "--times"),
        # A blob may be a link into a store that all models share; the store itself is not copied.
        "--copy-unsafe-links",
        # A file that was interrupted never has the name of the complete one.
        *("--partial-dir=.rsync-partial", f"--exclude=*{hub_cache.INCOMPLETE}"),
        "--mkpath",
        # The name of a branch leads to a commit of the same length, and may do so twice in a second.
        "--modify-window=-1",
        *("--info=progress2", "--no-human-readable"),
        # The names of the folders go to the node's rsync directly, not through a shell.
        "--protect-args",
        *("--rsh", f"ssh -p {to.port}" if to.port else "ssh"),
        *("--", f"{folder}/", f"{to.host}:{to.hub}/{folder.name}/"),
    ]
    with memory_file() as stderr:
        variables = {**environ, "LC_ALL": "C"}
        # The progress line overwrites itself after \r, which ends a line of text.
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=variables,
            text=True,
            errors="replace",
        ) as process:
            try:
                for line in process.stdout or ():
                    if copied := re.match(r"\s*(\d+)\s+\d+%", line):
                        report(TransferProgress(f"{model} to {to.node}", min(int(copied[1]), total), total))
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            stderr.seek(0)
            raise _error(model, to, process.returncode, stderr.read().decode(errors="replace"))


def _error(model: str, to: Destination, code: int, stderr: str) -> SourceError:
    if "rsync: command not found" in stderr or "rsync: not found" in stderr:
        return SourceError(
            f"{model} cannot be copied to {to.node}: it has no rsync", hint="`sudo apt-get install rsync`, on the node"
        )
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("rsync error:")]
    reason = "; ".join(lines[-2:]) or f"rsync ended with {code}"
    port = f" -p {to.port}" if to.port else ""
    return SourceError(
        f"{model} cannot be copied to {to.node}: {reason}",
        hint=f"does `ssh{port} {to.host}` let you in? What has arrived stays: run this again",
    )
