"""A server for as long as it is measured, for the commands that measure: one that runs is used, else one is started."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.commands import run, stop
from builder.definitions.recipes.container import STOPPING_SECONDS
from builder.events import Message
from builder.measuring import measured_server
from builder.serving import lookup
from builder.serving.preparation import ServeRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lock.model import ImageName
    from builder.measuring.measured_server import MeasuredServer
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace


@contextmanager
def running_or_started(workspace: Workspace, text: str) -> Iterator[MeasuredServer]:
    """The server called ``text``, a recipe or a model. One that this starts is stopped at the end, however that comes.

    Raises what `commands.run.run` does, MeasuringError where it does not answer.
    """
    server = lookup.pick(workspace.project, lookup.find_all(workspace), text)
    if server is not None and server.head.service.is_up:
        yield measured_server.of(server)
        return
    with started(workspace, ServeRequest(text, {})) as measured:
        yield measured


@contextmanager
def of_number(workspace: Workspace, text: str, image: ImageName) -> Iterator[MeasuredServer]:
    """The server of a recipe or a model from the number ``image``, whichever is paired; started, and stopped at the
    end."""
    with started(workspace, ServeRequest(text, {}, image=image)) as measured:
        yield measured


@contextmanager
def started(workspace: Workspace, request: ServeRequest) -> Iterator[MeasuredServer]:
    """A server that is started for this, and stopped at the end unless it was running before."""
    result = run.run(workspace, request, detach=False)
    try:
        yield measured_server.of(result.server)
    finally:
        if not result.already:
            _stop(workspace, result.server)


def _stop(workspace: Workspace, server: RunningServer) -> None:
    workspace.report(Message(f"stopping {server.name}, which was started for this"))
    stop.end(server, STOPPING_SECONDS)
