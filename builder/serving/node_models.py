"""The folder of models on a node, as an engine mounts it: with its whole path."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.definitions.configuration import FILE
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.configuration import Node


def folder(environ: Mapping[str, str], node: Node) -> str | None:
    """The folder that ``models:`` of a node names; None where it names none. ``~`` is the user's home folder, which
    is taken to be the same on every machine.

    Raises UsageError for ``~`` of a node that is reached as another user, and for a path that is relative.
    """
    written = node.models
    if written is None or written.startswith("/"):
        return written
    if written != "~" and not written.startswith("~/"):
        _refuse(node, "is no whole path", "it begins with / or ~/")
    user = urlsplit(node.engine).username or "" if node.engine.startswith("ssh://") else ""
    home = environ.get("HOME") or "/root"
    if user and user != _user(environ):
        _refuse(node, f"is in the home folder of {user}, whose path there is not known here", "write the whole path")
    return home + written[1:]


def _refuse(node: Node, why: str, hint: str) -> None:
    raise UsageError(f"{FILE}: `models: {node.models}` of node {node.name} {why}", hint=hint)


def _user(environ: Mapping[str, str]) -> str:
    import getpass

    return environ.get("USER") or getpass.getuser()
