"""The restart command: starts a server again as requested before, from the image that is paired with its model now."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.commands import stop
from builder.commands.run import serve
from builder.definitions.recipes import container_options
from builder.definitions.recipes.container import LABEL, STOPPING_SECONDS
from builder.events import Message
from builder.serving import lookup, machine_memory, preparation, room, starting
from builder.serving.running import REQUEST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.commands.run import ServeResult
    from builder.serving.preparation import ServeRequest
    from builder.workspace import Workspace


def run(workspace: Workspace, request: ServeRequest, *, detach: bool, proc: Path = machine_memory.PROC) -> ServeResult:
    """Stops the server called ``request.text`` and starts it again, with its earlier request and what ``request`` adds
    to that. One that does not run is started.

    Everything that can be checked is checked before the server is stopped. Raises what `commands.run.run` does.
    """
    running = lookup.pick(workspace.project, lookup.find_all(workspace), request.text)
    request = as_before(running.labels, request) if running else request
    prepared = preparation.prepare(workspace, request)
    stop.candidates_of_interrupted_upgrade(workspace, prepared.selection.recipe.file)
    leaving = tuple(member.service for member in running.members) if running else ()
    if running or not starting.is_running(prepared):
        room.require(prepared, leaving, workspace.report, proc)
    if running:
        starting.require_free_port(prepared, leaving=[member.service.name for member in running.members])
        if running.head.service.is_up:
            workspace.report(Message(f"stopping {running.name}, which serves from {running.image}"))
        stop.end(running, STOPPING_SECONDS)
    return serve(workspace, request, prepared, detach=detach)


def as_before(labels: Mapping[str, str], request: ServeRequest) -> ServeRequest:
    """The request that a server with these labels was started with, overridden by ``request``."""
    before = json.loads(labels.get(REQUEST, "{}"))
    return replace(
        request,
        # By its recipe: the model may be paired by another one now.
        text=labels.get(f"{LABEL}.recipe") or request.text,
        overrides={**before.get("overrides", {}), **request.overrides},
        extra=request.extra or before.get("extra", ()),
        nodes=request.nodes or before.get("nodes", ()),
        backend=request.backend or before.get("backend"),
        container=container_options.again(before.get("container", {}), request.container),
    )
