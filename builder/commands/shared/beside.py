"""A candidate's server beside the model's own, or in its place, and the model's own again afterwards: for the commands
that try an image before it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.commands import restart, stop
from builder.definitions.recipes.container import STOPPING_SECONDS
from builder.events import Message
from builder.lock import reading
from builder.serving import answered, beside, lookup, room
from builder.serving.preparation import ServeRequest

if TYPE_CHECKING:
    from builder.definitions.recipes.recipe import Recipe
    from builder.serving.answered import StartLimit
    from builder.serving.preparation import PreparedServer
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace


def server_of(workspace: Workspace, recipe: Recipe | None) -> RunningServer | None:
    """The server of the recipe, on this engine or on nodes."""
    return lookup.pick(workspace.project, lookup.find_all(workspace), recipe.file) if recipe else None


def request_as_before(workspace: Workspace, recipe: Recipe) -> ServeRequest:
    """The request that the model's server was started with, as the engine has it of the container, which stays while a
    candidate is in its place; a plain one without such a container."""
    server = server_of(workspace, recipe)
    return restart.as_before(server.labels if server else {}, ServeRequest(recipe.file, {}))


def make_room(workspace: Workspace, text: str, prepared: PreparedServer) -> None:
    """Stops the model's own server where the memory does not suffice for both. It is not started again here; the engine
    does it if the machine starts anew."""
    own = lookup.pick(workspace.project, lookup.find_all(workspace), text)
    if own is not None and not beside.fits(prepared):
        room.require(prepared, tuple(member.service for member in own.members), workspace.report)
        workspace.report(Message(f"stopping {own.name}: there is no memory for both"))
        beside.step_aside(own)


def start_limit(workspace: Workspace, prepared: PreparedServer) -> StartLimit:
    """The limit for a candidate's first answer (`answered.start_limit`)."""
    lock = reading.of(workspace.project)
    return answered.start_limit(workspace.project, lock, prepared.selection.recipe.model)


def stop_left_over(workspace: Workspace, recipe: Recipe, left: str) -> None:
    """Ends the servers of candidates of this recipe; ``left`` says what they are from."""
    for server in beside.running(workspace, recipe.file):
        workspace.report(Message(f"stopping {server.name}, {left}"))
        stop.end(server, STOPPING_SECONDS)


def serve_again(workspace: Workspace, recipe: Recipe) -> None:
    """Starts the model's own server again where it does not run: as it was, by what the engine has of its container.
    Where the container was removed, the recipe alone says how."""
    server = server_of(workspace, recipe)
    if server and server.head.service.is_up:
        return
    serving = f"{server.name} again, from {server.image}" if server else f"{recipe.name} again, as {recipe.file} says"
    workspace.report(Message(f"starting {serving}"))
    restart.run(workspace, ServeRequest(recipe.file, {}), detach=False)
