"""The run command on one page: prepare, start, wait, record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.commands import stop
from builder.errors import BuilderError, NoImageHelpsError, ServeFailedError
from builder.events import Message, WaitingStarted
from builder.lock import reading
from builder.serving import (
    answered,
    checkpoint_weights,
    image_selection,
    machine_memory,
    model_revision,
    preparation,
    readiness,
    room,
    starting,
)
from builder.serving.image_selection import SelectedImage
from builder.serving.running import answers
from builder.upgrading import going_back

if TYPE_CHECKING:
    from pathlib import Path

    from builder.serving.answered import StartLimit
    from builder.serving.image_selection import ServedImage
    from builder.serving.preparation import PreparedServer, ServeRequest
    from builder.serving.running import RunningServer
    from builder.upgrading.going_back import PutBack
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ServeResult:
    """A server that was started, or ran before (``already``). ``seconds`` is how long the wait for its first answer
    took: 0 where it answered at once, None where the command did not wait. ``put_back`` tells where the model is served
    by the image before, because its new one did not serve."""

    server: RunningServer
    already: bool
    seconds: float | None
    put_back: PutBack | None = None


def run(workspace: Workspace, request: ServeRequest, *, detach: bool, proc: Path = machine_memory.PROC) -> ServeResult:
    """Serves a recipe or a model with the image that it is paired with; waits until it answers, unless ``detach``. The
    memory of this machine is read in ``proc``. A number that this engine lacks is brought back first. Candidates that
    an interrupted upgrade left are ended.

    Raises what `bring_back`, `preparation.prepare`, `room.require`, `starting.start` and `readiness.wait` do.
    """
    selection = preparation.selected(workspace.project, request)
    if isinstance(selection, SelectedImage) and not request.nodes:
        from builder.commands import bringing_back

        # Before hours of building, a mistake in the recipe is told.
        preparation.settings(workspace.project, selection, request, workspace.environment)
        bringing_back.bring_back(workspace, reading.of(workspace.project), selection.image)
    stop.candidates_of_interrupted_upgrade(workspace, selection.recipe.file)
    prepared = preview(workspace, request, proc=proc)
    limit = None
    if request.image:  # a number that was named to be measured, whichever is paired
        limit = answered.start_limit(workspace.project, reading.of(workspace.project), prepared.selection.recipe.model)
    return serve(workspace, request, prepared, detach=detach, limit=limit)


def preview(workspace: Workspace, request: ServeRequest, *, proc: Path = machine_memory.PROC) -> PreparedServer:
    """The server that `run` would start; nothing is started. Raises what `preparation.prepare` and `room.require`
    do."""
    prepared = preparation.prepare(workspace, request)
    if not starting.is_running(prepared):
        leaving = tuple(filter(None, starting.existing_containers(prepared)))
        room.require(prepared, leaving, workspace.report, proc)
    return prepared


def serve(
    workspace: Workspace,
    request: ServeRequest,
    prepared: PreparedServer,
    *,
    detach: bool,
    limit: StartLimit | None = None,
) -> ServeResult:
    """Serves as `run` does, from a server that was prepared for ``request``; ``limit`` is a candidate's. A new image
    that does not serve gives way to the one before, once (`upgrading.going_back`), unless it is not the image that
    keeps it from serving."""
    project, environ = workspace.project, workspace.environment
    selection = prepared.selection
    warnings = (
        prepared.note,
        image_selection.warning(selection),
        image_selection.mods_warning(selection),
        model_revision.warning(project, environ, selection.recipe),
        checkpoint_weights.warning(project, reading.of(project), selection) if selection.recipe.checkpoint else "",
    )
    for warning in filter(None, warnings):
        workspace.report(Message(warning))
    started = starting.start(prepared, environ)
    if started.was_running and answers(started.server):
        return ServeResult(started.server, already=True, seconds=0)
    if detach:
        return ServeResult(started.server, started.was_running, None)
    before = going_back.image_before(workspace, selection)
    workspace.report(WaitingStarted())
    try:
        crashes = readiness.CRASHES_BEFORE_ANOTHER if before else readiness.CRASHES
        seconds = readiness.wait(project, started, workspace.report, crashes, limit)
        if before and isinstance(selection, SelectedImage):
            _require_probes(workspace, selection, started.server)
    except ServeFailedError as error:
        if before is None or not isinstance(selection, SelectedImage) or isinstance(error, NoImageHelpsError):
            raise
        return _put_back(workspace, request, selection, before, error)
    _record_answer(workspace, selection, seconds)
    return ServeResult(started.server, already=False, seconds=seconds)


def _require_probes(workspace: Workspace, served: SelectedImage, server: RunningServer) -> None:
    """Raises ServeFailedError where a new image fails a probe that its model requires; its server is ended then."""
    from builder.upgrading import first_answer

    if failure := first_answer.failed_probe(workspace, served, server):
        starting.remove(server)
        hint = f"`builder show {served.image}` has the result"
        raise ServeFailedError(failure, hint=hint)


def _put_back(
    workspace: Workspace, request: ServeRequest, served: SelectedImage, before: SelectedImage, error: ServeFailedError
) -> ServeResult:
    """Serves from the image before, and pairs the model with that once it answers. Raises ``error``, with why the image
    before does not serve either, where that is so; nothing is moved then."""
    model = served.recipe.model or ""
    # First of all: whatever happens now, this is not tried again for the same image.
    answered.record(workspace.project, model, served.record.fingerprint, "replaced")
    workspace.report(Message(f"{error.message.splitlines()[0]}: going back to {before.image}"))
    try:
        prepared = preparation.prepare(workspace, replace(request, image=before.image))
        started = starting.start(prepared, workspace.environment)
        workspace.report(WaitingStarted())
        seconds = readiness.wait(workspace.project, started, workspace.report)
    except BuilderError as also:
        reason = also.message.splitlines()[0]
        raise ServeFailedError(
            f"{error.message}\n{before.image}, the one before, does not serve it either: {reason}",
            log=error.log,
            hint=error.hint,
        ) from None
    result = going_back.record(workspace, served, before, error.message)
    _record_answer(workspace, before, seconds)
    return ServeResult(started.server, already=False, seconds=seconds, put_back=result)


def _record_answer(workspace: Workspace, selection: ServedImage, seconds: float) -> None:
    model = selection.recipe.model
    if model is None:
        return
    model_revision.record(workspace, model, selection.recipe if selection.recipe.checkpoint else None)
    if isinstance(selection, SelectedImage):
        answered.record(workspace.project, model, selection.record.fingerprint, "answered", seconds)
