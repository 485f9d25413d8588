"""The logs command: the lines that a server prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.engine import services
from builder.errors import UsageError
from builder.serving import lookup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.serving.running import RunningServer, ServerMember
    from builder.workspace import Workspace


def run(workspace: Workspace, text: str | None, node: str | None, tail: int | None) -> Iterator[str]:
    """Gives the lines so far of the server called ``text`` (None: the only one): the last ``tail`` where a
    number is given, of one ``node``, or of the one that answers. Raises UsageError where none is meant."""
    member = _member(lookup.find(workspace, text), node)
    return (line.text for line in services.log(member.engine.endpoint, member.service.id, tail=tail))


def follow(workspace: Workspace, text: str | None, node: str | None, tail: int | None) -> Iterator[str]:
    """Gives the same lines as `run`, and then each as it is written, until the server is stopped."""
    member = _member(lookup.find(workspace, text), node)
    return (line.text for line in services.follow(member.engine.endpoint, member.service.id, tail=tail))


def _member(running: RunningServer, node: str | None) -> ServerMember:
    if node is None:
        return running.head
    server_member = next((member for member in running.members if running.node_of(member) == node), None)
    if server_member is None:
        nodes = ", ".join(filter(None, map(running.node_of, running.members)))
        raise UsageError(f"{running.name} does not run on a node `{node}`", hint=f"its nodes: {nodes or 'none'}")
    return server_member
