"""A model from this machine's cache into a node's, by rsync over ssh: what the node has already does not move."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from builder.engine.client import endpoint
from builder.errors import SourceError, UsageError
from builder.events import TransferProgress
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.definitions.configuration import Node
    from builder.events import Report

# From the person's home on the node.
_DEFAULT_HOME = ".cache/huggingface"
_PARTS = ".rsync-partial"
_PROGRESS = re.compile(rb"\s*(\d+)\s+\d+%")


@dataclass(frozen=True)
class Destination:
    """Where a node's models lie: ``host`` as ssh takes it (USER@HOST), its ``port``, and the folder with the models,
    from the person's home there where it is not absolute."""

    node: str
    host: str
    port: int | None
    hub: str


def destination(environ: Mapping[str, str], node: Node) -> Destination:
    """Where the models of ``node`` go. Raises UsageError for a node that is not reached by ssh."""
    address = endpoint.of_node(environ, node.name, node.engine).host
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
    """Raises UsageError where this machine has no rsync."""
    if shutil.which("rsync") is None:
        raise UsageError(
            "rsync is not installed on this machine, and models go to nodes by it",
            hint="`sudo apt-get install rsync`, here and on the nodes",
        )


def copy(environ: Mapping[str, str], model: str, to: Destination, report: Report) -> None:
    """Makes the node's copy of ``model`` like this machine's, and touches nothing else there; older revisions that the
    node has stay.

    Raises SourceError where the node cannot be reached or does not take it.
    """
    held = huggingface_cache.held(environ, model)
    total = held.size if held else 0
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(
            _argv(environ, model, to),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**environ, "LC_ALL": "C"},
        ) as process:
            try:
                for current in _amounts(process.stdout):
                    report(TransferProgress(f"{model} to {to.node}", min(current, total), total))
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            said.seek(0)
            raise _failed(model, to, process.returncode, said.read().decode(errors="replace"))


def _argv(environ: Mapping[str, str], model: str, to: Destination) -> list[str]:
    folder = huggingface_cache.folder(environ, model)
    return [
        "rsync",
        *("--recursive", "--links", "--perms", "--times"),
        # A blob may be a link into a store that all models share, which is not copied.
        "--copy-unsafe-links",
        # What was broken off never has the name of the whole.
        f"--partial-dir={_PARTS}",
        f"--exclude=*{huggingface_cache.INCOMPLETE}",
        "--mkpath",
        # The name of a branch leads to a commit of the same length, and may do so twice in a second.
        "--modify-window=-1",
        *("--info=progress2", "--no-human-readable"),
        # The folders' names go to the node's rsync itself, and through no shell.
        "--protect-args",
        *(("--rsh", f"ssh -p {to.port}") if to.port else ("--rsh", "ssh")),
        "--",
        f"{folder}/",
        f"{to.host}:{to.hub}/{folder.name}/",
    ]


def _amounts(stream: IO[bytes] | None) -> Iterator[int]:
    """The bytes that rsync says have come across; it writes one line over the other."""
    rest = b""
    while stream and (read := os.read(stream.fileno(), 65536)):
        *lines, rest = re.split(rb"[\r\n]", rest + read)
        for line in lines:
            if found := _PROGRESS.match(line):
                yield int(found[1])


def _failed(model: str, to: Destination, code: int, said: str) -> SourceError:
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("rsync error:")]
    reason = "; ".join(lines[-2:]) or f"rsync ended with {code}"
    if "rsync: command not found" in said or "rsync: not found" in said:
        return SourceError(
            f"{model} cannot be copied to {to.node}: it has no rsync", hint="`sudo apt-get install rsync`, on the node"
        )
    port = f" -p {to.port}" if to.port else ""
    return SourceError(
        f"{model} cannot be copied to {to.node}: {reason}",
        hint=f"does `ssh{port} {to.host}` let you in? What has arrived stays: run this again",
    )
