"""The stop command: ends a server, and kills only what does not end in time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes.container import STOPPING_SECONDS
from builder.engine import services
from builder.events import Message
from builder.lock.model import Lock
from builder.serving import beside, lookup
from builder.upgrading import interrupted

if TYPE_CHECKING:
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace

_KILLED = 137


@dataclass(frozen=True)
class Stopped:
    """A server that was ended. ``killed`` are the containers that did not end by themselves in time."""

    server: RunningServer
    seconds: float
    killed: tuple[str, ...]


def run(workspace: Workspace, text: str | None, limit: int) -> Stopped:
    """Ends the server called ``text``, or the only one there is; ``limit`` as for `end`. Raises UsageError where there
    is no such server."""
    return end(lookup.find(workspace, text, hint="there is nothing to stop"), limit)


def candidates_of_interrupted_upgrade(workspace: Workspace, recipe: str) -> None:
    """Ends the candidates of the recipe with this path that an interrupted upgrade left: they hold the memory that the
    model's own server needs."""
    upgrades = [each.upgrade for each in interrupted.of(workspace.project, Lock())]
    if any(upgrade and upgrade.target == recipe for upgrade in upgrades):
        for server in beside.running(workspace, recipe):
            workspace.report(Message(f"stopping {server.name}, which an interrupted upgrade left"))
            end(server, STOPPING_SECONDS)


def end(running: RunningServer, limit: int) -> Stopped:
    """Stops each container, beginning with the one that answers requests; kills it after ``limit`` seconds, and removes
    it."""
    began = time.monotonic()
    killed = []
    for member in running.members:
        was_up = member.service.is_up
        ended = services.stop(member.engine.endpoint, member.service.id, limit)
        if was_up and ended and ended.exit_code == _KILLED:
            killed.append(ended.name)
    return Stopped(running, time.monotonic() - began, tuple(killed))
