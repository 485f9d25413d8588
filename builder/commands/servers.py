"""The commands stop, run and restart. A restart uses the image that is now paired with the model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import BuilderError, MeasuringError, NoImageHelpsError, ServeFailedError
from builder.base.events import Message, WaitingStarted
from builder.base.values import dataclass, replace
from builder.definitions import command, configuration, container
from builder.engine import containers, machine
from builder.evidence import requirements
from builder.lab import upgrade_journal
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.numbers import images_lock
from builder.serving import advice, compile_caches, model_weights, preparation, readiness, running, starting
from builder.serving.selection import SelectedImage, ServedImage, mods_warning, selection_warning, with_number

if TYPE_CHECKING:
    from builder.numbers.workspace import Workspace
    from builder.serving.preparation import PreparedServer, ServeRequest
    from builder.serving.running import RunningServer
    from builder.serving.starting import StartedServer


@dataclass(frozen=True)
class Stopped:
    """A stopped server. ``killed`` are the containers that did not end in time."""

    server: RunningServer
    seconds: float
    killed: tuple[str, ...]


def stop_server(workspace: Workspace, text: str | None, limit: int) -> Stopped:
    """Stops the server called ``text``, or the only server. Raises UsageError if there is no such server."""
    return end_server(running.find_server(workspace, text, hint="there is nothing to stop"), limit)


def end_server(server: RunningServer, limit: int = container.STOPPING_SECONDS) -> Stopped:
    """Stops each container, the head first, and removes it. Kills a container that does not end within ``limit``
    seconds."""
    began = time.monotonic()
    killed = []
    for member in server.members:
        ended = containers.stop_container(member.engine, member.service.id, limit)
        if not member.service.is_up or ended is None:
            continue
        if ended.exit_code == 137:  # killed by SIGKILL, perhaps while it wrote a file
            killed.append(ended.name)
        elif folder := starting.local_compile_cache(member.engine, member.service.labels):
            compile_caches.record_added(folder)
    return Stopped(server, time.monotonic() - began, tuple(killed))


def stop_candidates(workspace: Workspace, recipe: str, left: str) -> None:
    """Stops the candidates' servers for the recipe with this path. ``left`` says why they are still running."""
    for server in running.find_candidates(workspace, recipe):
        workspace.report(Message(f"stopping {server.name}, {left}"))
        end_server(server)


def candidates_of_interrupted_upgrade(workspace: Workspace, recipe: str) -> None:
    """Stops the candidates of an interrupted upgrade, because the model's own server needs their memory."""
    upgrades = [each.upgrade for each in upgrade_journal.interrupted_upgrades(workspace.project, Lock())]
    if any(upgrade and upgrade.target == recipe for upgrade in upgrades):
        stop_candidates(workspace, recipe, "which an interrupted upgrade left running")


# The run command: prepare, start, wait, record.


@dataclass(frozen=True)
class ServeResult:
    """A server that was started, or was running ``already``. ``seconds`` is the wait for its first answer: 0 if it
    answered at once, None if the command did not wait. If the previous image replaced a new image that failed,
    ``put_back_from`` is the new image, and ``put_back_reason`` is one line."""

    server: RunningServer
    already: bool
    seconds: float | None
    put_back_from: ImageName | None = None
    put_back_reason: str = ""


def run_server(workspace: Workspace, request: ServeRequest, *, detach: bool) -> ServeResult:
    """Serves a recipe or a model with its paired image, and waits for the first answer unless ``detach``. If the engine
    lacks the number, the image is brought back first."""
    selection = preparation.selected(workspace.project, request)
    if isinstance(selection, SelectedImage) and not request.nodes:
        from builder.commands import rollback

        # Find mistakes in the recipe before a build that may take hours.
        preparation.settings(workspace.project, selection, request, workspace.environment)
        rollback.bring_back(workspace, lock_file.read_project_lock(workspace.project), selection.image)
    candidates_of_interrupted_upgrade(workspace, selection.recipe.file)
    prepared = preview_run(workspace, request)
    limit = None
    if request.image:  # a number to measure, not necessarily the paired one
        lock = lock_file.read_project_lock(workspace.project)
        limit = readiness.start_limit(workspace.project, lock, prepared.selection.recipe.model)
    return _serve(workspace, request, prepared, detach=detach, limit=limit)


def preview_run(workspace: Workspace, request: ServeRequest) -> PreparedServer:
    """The server that `run` would start. Starts nothing."""
    prepared = preparation.prepare(workspace, request)
    existing = starting.existing_containers(prepared)
    if not starting.is_running(prepared, existing):
        starting.require_room(workspace, prepared, tuple(filter(None, existing)))
    return prepared


def _serve(
    workspace: Workspace, request: ServeRequest, prepared: PreparedServer, *, detach: bool, limit: float | None = None
) -> ServeResult:
    """Starts a prepared server. If a new image fails, the previous image replaces it once, if another image can help.
    ``limit`` is passed to `readiness.wait_until_ready`."""
    selection = prepared.selection
    _report_warnings(workspace, request, prepared)
    started = starting.start_server(prepared, workspace.environment, workspace.report)
    if prepared.tried and not started.was_running:
        _apply_tried(workspace, prepared, started)
    if started.was_running and running.answers(started.server):
        return ServeResult(started.server, already=True, seconds=0)
    if detach:
        return ServeResult(started.server, started.was_running, None)
    before = None if prepared.tried else _image_before(workspace, selection)
    workspace.report(WaitingStarted())
    try:
        crashes = readiness.CRASHES_BEFORE_ANOTHER if before else readiness.CRASHES
        seconds = readiness.wait_until_ready(workspace, started, crashes, limit)
        if before and isinstance(selection, SelectedImage):
            _require_probes(workspace, selection, started.server)
    except ServeFailedError as error:
        if before is None or not isinstance(selection, SelectedImage) or isinstance(error, NoImageHelpsError):
            raise
        return _serve_image_before(workspace, request, selection, before, error)
    if not prepared.tried:
        record_answer(workspace, selection, seconds, started)
    return ServeResult(started.server, already=False, seconds=seconds)


def _report_warnings(workspace: Workspace, request: ServeRequest, prepared: PreparedServer) -> None:
    """Reports warnings about the selection, and advisories. Raises ConflictError if an advisory certainly applies."""
    project, selection = workspace.project, prepared.selection
    lock = lock_file.read_project_lock(project)
    for warning in (
        prepared.note,
        selection_warning(selection),
        mods_warning(project, selection),
        model_weights.revision_warning(project, workspace.environment, lock, selection.recipe),
        model_weights.weights_warning(project, lock, selection),
    ):
        if warning:
            workspace.report(Message(warning))
    names = {each.engine.node for each in prepared.containers}
    nodes = [node for node in configuration.load_configuration(project).nodes if node.name in names]
    backend = (request.backend or "mp") if len(prepared.containers) > 1 else None
    words = command.render_command(selection.recipe, request.overrides, request.extra, backend).words
    facts = advice.of_machine() if machine.is_here(prepared.head.engine.host) else {}
    advised = advice.of_selection(project, selection, nodes, facts, words)
    advice.refuse_certain(advised)
    advice.report_advice(workspace.report, advised)


def _apply_tried(workspace: Workspace, prepared: PreparedServer, started: StartedServer) -> None:
    """Applies the mods of `--try-mod`. If one fails, the server is removed."""
    from builder.building import mod_trial

    try:
        mod_trial.apply_tried(workspace, started.server, prepared.containers, prepared.tried)
    except BaseException:
        starting.remove_server(started.server)
        raise
    bakes = " ".join(f"--mod {each.name}" for each in prepared.tried)
    target = words.shell_word(prepared.selection.recipe.file)
    workspace.report(
        Message(f"only this server has the mods; to build them into an image: `builder build {target} {bakes}`")
    )


def record_answer(workspace: Workspace, selection: ServedImage, seconds: float, started: StartedServer) -> None:
    """Records that an image served its model here after ``seconds``, with the revision of the model and the facts of
    machines and server. Also records that the compile caches are complete."""
    for member in started.server.members:
        if folder := starting.local_compile_cache(member.engine, member.service.labels):
            compile_caches.record_complete(folder)
    if (model := selection.recipe.model) is None:
        return
    model_weights.record_revision(workspace, model, selection.recipe if selection.recipe.checkpoint else None)
    if isinstance(selection, SelectedImage):
        facts = readiness.start_facts(workspace, selection, started)
        readiness.record_answered(workspace.project, model, selection.record.fingerprint, "answered", seconds, facts)


# If a new image fails, its model returns to the previous image, once. This requires that the new image has never
# answered for the model here, and that the previous image has (docs/decisions/021-one-automatic-return.md).

_LONGEST_REASON = 200


def _image_before(workspace: Workspace, served: ServedImage) -> SelectedImage | None:
    """The previous image, which replaces ``served`` if ``served`` fails. None if there is none, or if it was already
    tried. The image must have answered here, unless the model requires evidence."""
    model = served.recipe.model
    if model is None or not isinstance(served, SelectedImage) or served.reason != "paired":
        return None
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    paired = lock.models.get(model)
    if paired is None or paired.pairing.image != served.image:
        return None
    if paired.pairing.status != "untested" or paired.pairing.note.startswith(requirements.FORCED):
        return None  # the user marked it, or forced it without evidence
    starts = readiness.recorded_starts(project, model)
    before = requirements.pairing_before(project, workspace.environment, lock, model)
    if before is None or served.record.fingerprint in starts:
        return None
    selected = with_number(lock, served.recipe, before.image)
    start = starts.get(selected.record.fingerprint)
    has_answered = start is not None and start.outcome == "answered"
    return selected if has_answered or requirements.required(project, model, served.recipe) else None


def _require_probes(workspace: Workspace, served: SelectedImage, server: RunningServer) -> None:
    """Runs each required probe that has not passed on this image, and keeps the result. If a probe fails, stops the
    server and raises ServeFailedError. A probe that cannot run decides nothing."""
    project, model = workspace.project, served.recipe.model
    lock = lock_file.read_project_lock(project)
    lacking = requirements.missing(
        project, lock, served.image, model, recipe=served.recipe, environ=workspace.environment
    )
    names = [each.name for each in lacking if each.kind == "probe"]
    if not names:
        return
    from builder.lab.measure import measurement, probes

    try:
        measured = measurement.find_measured_server(server)
        for name in names:
            probes.require(project, name)
            workspace.report(Message(f"{served.image} is new: running the probe {name}, which {model} requires"))
            outcome = probes.run_probe(project, measured.model, name, workspace.environment, workspace.report)
            measurement.keep_run(workspace, measured, outcome)
            if outcome.verdict == "fail":
                starting.remove_server(server)
                hint = f"`builder show {served.image}` shows the result"
                raise ServeFailedError(f"{server.name} answers, but fails the probe {name}", hint=hint)
    except MeasuringError as error:
        workspace.report(Message(error.message))


def _serve_image_before(
    workspace: Workspace, request: ServeRequest, served: SelectedImage, before: SelectedImage, error: ServeFailedError
) -> ServeResult:
    """Serves with the previous image, and pairs the model with it once it answers. If it does not answer, the pairing
    stays, and ``error`` is raised with the reason added."""
    model = served.recipe.model or ""
    # Record this first: whatever happens next, the same image gets no second try.
    readiness.record_answered(workspace.project, model, served.record.fingerprint, "replaced")
    reason = error.message.splitlines()[0]
    workspace.report(Message(f"{reason}: going back to {before.image}"))
    try:
        prepared = preparation.prepare(workspace, replace(request, image=before.image))
        started = starting.start_server(prepared, workspace.environment, workspace.report)
        workspace.report(WaitingStarted())
        seconds = readiness.wait_until_ready(workspace, started)
    except BuilderError as also:
        also_reason = also.message.splitlines()[0]
        raise ServeFailedError(
            f"{error.message}\n{before.image}, the previous image, does not serve {model} either: {also_reason}",
            log=error.log,
            # The hint is not a rollback, because a rollback would lead to an image that failed.
            hint=f"`builder why {words.shell_word(model)}` shows what changed since it last worked",
        ) from None
    reason = "".join(char if char.isprintable() else " " for char in reason)
    reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 1]}…"
    _record_going_back(workspace, served, before, reason)
    record_answer(workspace, before, seconds, started)
    return ServeResult(started.server, False, seconds, served.image, reason)


def _record_going_back(workspace: Workspace, served: SelectedImage, before: SelectedImage, reason: str) -> None:
    """Pairs the model with the previous image, and marks the failed pairing bad, with the ``reason``."""
    model = served.recipe.model or ""
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        paired = lock.models.get(model)
        goal = next((each for each in paired.previous if each.image == before.image), None) if paired else None
        if paired and goal and paired.pairing.image == served.image:  # otherwise the pairing was moved in the meantime
            note = f"{running.PUT_BACK}{before.image} {words.now()[:10]}: {reason}"
            marked = replace(paired, pairing=replace(paired.pairing, status="bad", note=note))
            transaction.commit(lock.with_model(model, marked.with_pairing(goal)))


# The restart command: starts a server again with its earlier request, from the image that is now paired.


def restart_server(workspace: Workspace, request: ServeRequest, *, detach: bool) -> ServeResult:
    """Stops the server called ``request.text`` and starts it with its earlier request, overridden by ``request``.
    Without a running server, starts one. Checks everything possible before the server stops."""
    server = running.pick(workspace.project, running.find_all(workspace), request.text)
    request = as_before(server.labels, request) if server else request
    prepared = preparation.prepare(workspace, request)
    candidates_of_interrupted_upgrade(workspace, prepared.selection.recipe.file)
    leaving = tuple(member.service for member in server.members) if server else ()
    if server or not starting.is_running(prepared, starting.existing_containers(prepared)):
        starting.require_room(workspace, prepared, leaving)
    if server:
        starting.require_free_port(prepared, leaving=[service.name for service in leaving])
        if server.head.service.is_up:
            workspace.report(Message(f"stopping {server.name}, which serves from {server.image}"))
        end_server(server)
    return _serve(workspace, request, prepared, detach=detach)


def as_before(labels: Mapping[str, str], request: ServeRequest) -> ServeRequest:
    """The request that started a server with these labels, overridden by ``request``."""
    before = running.StartOptions.of_labels(labels)
    return replace(
        request,
        # The recipe, because the model may now be paired by another recipe.
        text=labels.get(f"{container.LABEL}.recipe") or request.text,
        overrides={**before.overrides, **request.overrides},
        extra=request.extra or before.extra,
        nodes=request.nodes or before.nodes,
        try_mods=request.try_mods or before.try_mods,
        backend=request.backend or before.backend,
        container=container.again(before.container, request.container),
    )
