"""The run command on one page: prepare, start, wait, record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.events import Message
from builder.serving import image_selection, machine_memory, model_revision, preparation, readiness, room, starting
from builder.serving.running import answers

if TYPE_CHECKING:
    from pathlib import Path

    from builder.serving.preparation import PreparedServer, ServeRequest
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace


@dataclass(frozen=True)
class WaitingStarted:
    """The event when everything is started and only the wait remains."""


@dataclass(frozen=True)
class ServeResult:
    """A server that was started, or ran before (``already``). ``seconds`` is how long the wait for its first answer
    took: 0 where it answered at once, None where the command did not wait."""

    server: RunningServer
    already: bool
    seconds: float | None


def run(workspace: Workspace, request: ServeRequest, *, detach: bool, proc: Path = machine_memory.PROC) -> ServeResult:
    """Serves a recipe or a model with the image that it is paired with; waits until it answers, unless ``detach``. The
    memory of this machine is read in ``proc``.

    Raises what `preparation.prepare`, `room.require`, `starting.start` and `readiness.wait` do.
    """
    prepared = preparation.prepare(workspace, request)
    if not starting.is_running(prepared):
        leaving = tuple(filter(None, starting.existing_containers(prepared)))
        room.require(prepared, leaving, workspace.report, proc)
    return serve(workspace, prepared, detach=detach)


def serve(workspace: Workspace, prepared: PreparedServer, *, detach: bool) -> ServeResult:
    """Serves as `run` does, from a prepared server."""
    project, environ = workspace.project, workspace.environment
    selection = prepared.selection
    warnings = (
        prepared.note,
        image_selection.warning(selection),
        image_selection.mods_warning(selection),
        model_revision.warning(project, environ, selection.recipe),
    )
    for warning in filter(None, warnings):
        workspace.report(Message(warning))
    started = starting.start(prepared, environ)
    if started.was_running and answers(started.server):
        return ServeResult(started.server, already=True, seconds=0)
    if detach:
        return ServeResult(started.server, started.was_running, None)
    workspace.report(WaitingStarted())
    seconds = readiness.wait(project, started, workspace.report)
    if selection.recipe.model:
        model_revision.record(workspace, selection.recipe.model)
    return ServeResult(started.server, already=False, seconds=seconds)
