"""A candidate's server beside the model's own, or in its place, and the model's own again afterwards: for the commands
that try an image before it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.commands import restart, run, stop
from builder.definitions.recipes.container import LABEL, STOPPING_SECONDS
from builder.events import Message
from builder.serving import beside, lookup, room
from builder.serving.preparation import ServeRequest
from builder.serving.running import REQUEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.recipe import Recipe
    from builder.serving.preparation import PreparedServer
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace


def kept_labels(server: RunningServer | None) -> dict[str, str]:
    """The labels by which a server is started again as it was; empty where there is none."""
    return {key: server.labels.get(key, "") for key in (REQUEST, f"{LABEL}.recipe", LABEL)} if server else {}


def server_of(workspace: Workspace, recipe: Recipe | None) -> RunningServer | None:
    """The server of the recipe, on this engine or on nodes."""
    return lookup.pick(workspace.project, lookup.find_all(workspace), recipe.file) if recipe else None


def request_as_before(labels: Mapping[str, str], recipe: Recipe) -> ServeRequest:
    """The request that the model's server was started with, or a plain one."""
    return restart.as_before(labels, ServeRequest(recipe.file, {}))


def make_room(workspace: Workspace, text: str, prepared: PreparedServer) -> None:
    """Stops the model's own server where the memory does not suffice for both. It is not started again here; the engine
    does it if the machine starts anew."""
    own = lookup.pick(workspace.project, lookup.find_all(workspace), text)
    if own is not None and not beside.fits(prepared):
        room.require(prepared, tuple(member.service for member in own.members), workspace.report)
        workspace.report(Message(f"stopping {own.name}: there is no memory for both"))
        beside.step_aside(own)


def stop_left_over(workspace: Workspace, recipe: Recipe, left: str) -> None:
    """Ends the servers of candidates of this recipe; ``left`` says what they are from."""
    for server in beside.running(workspace, recipe.file):
        workspace.report(Message(f"stopping {server.name}, {left}"))
        stop.end(server, STOPPING_SECONDS)


def serve_again(workspace: Workspace, recipe: Recipe, labels: Mapping[str, str], image: str) -> None:
    """Starts the model's own server again, as it was, where it ran (``labels``) and does not run now."""
    if not labels:
        return
    server = server_of(workspace, recipe)
    if server and server.head.service.is_up:
        return
    if server:
        stop.end(server, STOPPING_SECONDS)
    workspace.report(Message(f"starting {labels[LABEL]} again, from {image}"))
    run.run(workspace, request_as_before(labels, recipe), detach=False)
