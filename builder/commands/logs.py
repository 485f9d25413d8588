"""The logs verb: what a server prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.engine import services
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.serving.running import RunningServer, ServerMember


def last(running: RunningServer, node: str | None, tail: int | None) -> Iterator[str]:
    """The lines so far, the last ``tail`` where a number is given, of one ``node``, or of the one that answers."""
    member = _member(running, node)
    return (line.text for line in services.log(member.engine.endpoint, member.service.id, tail=tail))


def following(running: RunningServer, node: str | None, tail: int | None) -> Iterator[str]:
    """The same lines, and then each as it is written, until the server is stopped."""
    member = _member(running, node)
    return (line.text for line in services.follow(member.engine.endpoint, member.service.id, tail=tail))


def _member(running: RunningServer, node: str | None) -> ServerMember:
    if node is None:
        return running.head
    found = next((member for member in running.members if running.node_of(member) == node), None)
    if found is None:
        known = ", ".join(filter(None, map(running.node_of, running.members)))
        raise UsageError(f"{running.name} does not run on a node `{node}`", hint=f"its nodes: {known or 'none'}")
    return found
