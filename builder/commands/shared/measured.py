"""A server for as long as it is measured, for the commands that measure: one that runs is used, else one is started."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from builder.commands import run, stop
from builder.definitions.recipes.container import STOPPING_SECONDS
from builder.errors import UsageError
from builder.events import Message
from builder.lock import reading
from builder.measuring import measured_server
from builder.numbered import names
from builder.serving import image_selection, lookup
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


def chosen(workspace: Workspace, text: str, image: str) -> AbstractContextManager[MeasuredServer]:
    """The server called ``text``, from the number called ``image`` where one is given."""
    return (
        of_number(workspace, text, numbered(workspace, text, image)) if image else running_or_started(workspace, text)
    )


def numbered(workspace: Workspace, text: str, image: str) -> ImageName:
    """The numbered image called ``image``: with its repository, or by the number alone in that of ``text``. Raises
    UsageError."""
    lock = reading.of(workspace.project)
    repository = image_selection.select_any(workspace.project, lock, text).recipe.repository
    full = f"{repository}:{image}" if image.isdecimal() else image
    if ":" not in full:
        raise UsageError(f"`{image}` is no numbered image", hint=f"name a number, such as {repository}:1")
    name, _ = names.numbered(workspace.project, lock, full)
    return name


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
    if stop.end(server, STOPPING_SECONDS).killed:
        workspace.report(Message(f"{server.name} did not end by itself within {STOPPING_SECONDS} s, and was killed"))
