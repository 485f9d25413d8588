"""These commands show, start and stop servers.

The order is logs, status, stop, run and restart.
A restart uses the image that is paired with the model now.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from builder.base.errors import BuilderError, EngineError, LockError, NoImageHelpsError, ServeFailedError, UsageError
from builder.base.events import Message, WaitingStarted
from builder.definitions import container
from builder.definitions.container import LABEL, STOPPING_SECONDS
from builder.engine import containers
from builder.lab.upgrade import going_back, upgrade_journal
from builder.lock import lock_file
from builder.lock.model import Lock
from builder.serving import (
    beside,
    checkpoint_weights,
    memory,
    model_revision,
    preparation,
    readiness,
    running,
    starting,
)
from builder.serving.running import REQUEST, answers, find_all, pick
from builder.serving.selection import SelectedImage, mods_warning, selection_warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.base.project import Project
    from builder.lab.upgrade.going_back import PutBack
    from builder.lab.upgrade.upgrade_journal import InterruptedUpgrade
    from builder.lock.model import Pairing
    from builder.numbers.workspace import Workspace
    from builder.serving.model_revision import StartLimit
    from builder.serving.preparation import PreparedServer, ServeRequest
    from builder.serving.readiness import Phase, ServerMetrics
    from builder.serving.running import RunningServer, ServerMember, SupersededServer
    from builder.serving.selection import ServedImage


# The logs command: the lines that a server prints.


def server_logs(workspace: Workspace, text: str | None, node: str | None, tail: int | None) -> Iterator[str]:
    """Gives the lines so far of the server called ``text`` (None: the only one): the last ``tail`` where a
    number is given, of one ``node``, or of the one that answers. Raises UsageError where none is meant."""
    member = _member(running.find_server(workspace, text), node)
    return (line.text for line in containers.container_log(member.engine.endpoint, member.service.id, tail=tail))


def follow_server_log(workspace: Workspace, text: str | None, node: str | None, tail: int | None) -> Iterator[str]:
    """Gives the same lines as `run`, and then each as it is written, until the server is stopped."""
    member = _member(running.find_server(workspace, text), node)
    return (line.text for line in containers.follow_log(member.engine.endpoint, member.service.id, tail=tail))


def _member(running: RunningServer, node: str | None) -> ServerMember:
    if node is None:
        return running.head
    server_member = next((member for member in running.members if running.node_of(member) == node), None)
    if server_member is None:
        nodes = ", ".join(filter(None, map(running.node_of, running.members)))
        raise UsageError(f"{running.name} does not run on a node `{node}`", hint=f"its nodes: {nodes or 'none'}")
    return server_member


# The status command: the state of every server, with the metrics that vLLM reports.

# The time between two readings of the metrics, which give a rate.
INTERVAL_SECONDS = 1.0
_READING_TIMEOUT = 15
_RECENT_LINES = 400
_LAST_LINES = 5
# Runs in the container, where the server answers whatever its network is, and wherever its engine is.
_READING = """\
import http.client, json, sys, time
host, port, interval = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
readings = []
for pause in (0, interval):
    time.sleep(pause)
    connection = http.client.HTTPConnection(host, port, timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:") and "_bucket{" not in line]
    readings.append((time.monotonic(), "\\n".join(lines)))
print(json.dumps(readings))
"""


@dataclass(frozen=True)
class TokenRates:
    """Tokens a second, of prompts and generated, between two readings."""

    prompt: float
    generated: float


@dataclass(frozen=True)
class EndedContainer:
    """A container that ended while others of its server stayed: its node, its exit code and its last lines."""

    node: str
    exit_code: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ServerState:
    """A server and its ``state``: healthy, starting, unhealthy, restarting, running (where its health is not known),
    stopped, ``incomplete`` where a node is missing, or ``ended`` where the container of a node has ended, and with it
    the whole. ``phase`` is the step of its start; ``up`` is in seconds; ``numbers`` and ``rates`` are None where the
    server does not report them. ``put_back`` is the pairing that its model was put back from by itself, ``superseded``
    says that its model is paired with another image by now."""

    running: RunningServer
    state: str
    phase: str
    up: float | None
    restarts: int
    numbers: ServerMetrics | None
    rates: TokenRates | None
    ended: tuple[EndedContainer, ...] = ()
    put_back: Pairing | None = None
    superseded: SupersededServer | None = None


@dataclass(frozen=True)
class ServingOverview:
    """All servers, the nodes that do not answer, and the upgrades that were interrupted."""

    states: tuple[ServerState, ...]
    silent: tuple[str, ...]
    interrupted: tuple[InterruptedUpgrade, ...] = ()


def server_status(workspace: Workspace, text: str | None) -> ServingOverview:
    """Reads the state of all servers, or of the one called ``text``; takes a little more than `INTERVAL_SECONDS` where
    one answers.

    Raises UsageError where no server is called so, EngineError where the engine does not answer.
    """
    from concurrent.futures import ThreadPoolExecutor

    lock = Lock()
    with suppress(LockError):  # what is served is told without it
        lock = lock_file.read_lock(workspace.project.lock)
    upgrades = tuple(upgrade_journal.interrupted_upgrades(workspace.project, lock))
    if text is not None:
        state = _state(workspace.project, lock, running.find_server(workspace, text))
        own = tuple(upgrade for upgrade in upgrades if upgrade.subject == state.running.model)
        return ServingOverview((state,), (), own)
    running_servers = running.find_all(workspace)
    with ThreadPoolExecutor(max_workers=8) as pool:
        states = pool.map(lambda server: _state(workspace.project, lock, server), running_servers.servers)
        return ServingOverview(tuple(states), running_servers.unreachable, upgrades)


def _state(project: Project, lock: Lock, server: RunningServer) -> ServerState:
    head = server.head.service
    state = _container_state(server)
    phase = _phase(server) if state == "starting" else None
    if phase and phase.name == readiness.READY and running.answers(server):
        state = "healthy"  # its health check has not run again yet
    numbers, rates = _numbers(server) if state in {"healthy", "unhealthy", "running"} else (None, None)
    if state in {"healthy", "unhealthy"}:
        # Once it has answered its health check seldom runs: what counts is its answer now.
        state = "healthy" if numbers or running.answers(server) else "unhealthy"
    return ServerState(
        running=server,
        state=state,
        phase=str(phase) if phase and state == "starting" else "",
        up=_seconds_since(head.started) if head.status == "running" else None,
        restarts=sum(member.service.restarts for member in server.members),
        numbers=numbers,
        rates=rates,
        ended=_ended(server),
        put_back=_put_back(project, lock, server),
        superseded=running.of_labels(project, lock, server.labels),
    )


def _put_back(project: Project, lock: Lock, server: RunningServer) -> Pairing | None:
    """The pairing that the model of a server of this project was put back from."""

    if server.labels.get(running.PROJECT) != str(project.root) or server.model not in lock.models:
        return None
    return going_back.of_model(lock, server.model)


def _container_state(server: RunningServer) -> str:
    if server.missing:
        return "incomplete"
    up = [member.service.is_up for member in server.members]
    if not all(up):
        return "stopped" if len(up) == 1 else "ended"
    if any(member.service.status == "restarting" for member in server.members):
        return "restarting"
    return server.head.service.health or "running"


def _ended(server: RunningServer) -> tuple[EndedContainer, ...]:
    """The containers of several nodes that have ended, with their last lines."""
    if len(server.members) == 1:
        return ()
    ended = []
    for member in server.members:
        if not member.service.is_up:
            lines = containers.container_log(member.engine.endpoint, member.service.id, tail=_LAST_LINES)
            texts = tuple(line.text for line in lines)
            ended.append(EndedContainer(server.node_of(member), member.service.exit_code, texts))
    return tuple(ended)


def _phase(server: RunningServer) -> Phase | None:
    head = server.head
    lines = containers.container_log(head.engine.endpoint, head.service.id, tail=_RECENT_LINES)
    # Lines from before a restart do not count.
    return readiness.latest_phase([line.text for line in lines if line.written >= head.service.started])


def _numbers(server: RunningServer) -> tuple[ServerMetrics | None, TokenRates | None]:
    head = server.head
    if server.port_inside is None:
        return None, None
    host = running.listening_host(head.service)
    argv = ["python3", "-ISc", _READING, host, str(server.port_inside), str(INTERVAL_SECONDS)]
    try:
        result = containers.execute(head.engine.endpoint, head.service.id, argv, _READING_TIMEOUT)
    except EngineError:  # it has just ended, or is too busy to answer
        return None, None
    if result.exit_code:
        return None, None
    (began, first), (ended, second) = json.loads(result.output)
    before, now = readiness.read_metrics(first), readiness.read_metrics(second)
    if before is None or now is None:
        return now, None
    return now, TokenRates(
        prompt=(now.prompt_tokens - before.prompt_tokens) / (ended - began),
        generated=(now.generated_tokens - before.generated_tokens) / (ended - began),
    )


def _seconds_since(started: str) -> float:
    return max((datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds(), 0)


# The stop command: ends a server, and kills only what does not end in time.

_KILLED = 137


@dataclass(frozen=True)
class Stopped:
    """A server that was ended. ``killed`` are the containers that did not end by themselves in time."""

    server: RunningServer
    seconds: float
    killed: tuple[str, ...]


def stop_server(workspace: Workspace, text: str | None, limit: int) -> Stopped:
    """Ends the server called ``text``, or the only one there is; ``limit`` as for `end_server`. Raises UsageError where
    there is no such server."""
    return end_server(running.find_server(workspace, text, hint="there is nothing to stop"), limit)


def candidates_of_interrupted_upgrade(workspace: Workspace, recipe: str) -> None:
    """Ends the candidates of the recipe with this path that an interrupted upgrade left: they hold the memory that the
    model's own server needs."""
    upgrades = [each.upgrade for each in upgrade_journal.interrupted_upgrades(workspace.project, Lock())]
    if any(upgrade and upgrade.target == recipe for upgrade in upgrades):
        for server in beside.running(workspace, recipe):
            workspace.report(Message(f"stopping {server.name}, which an interrupted upgrade left"))
            end_server(server, STOPPING_SECONDS)


def end_server(running: RunningServer, limit: int) -> Stopped:
    """Stops each container, beginning with the one that answers requests; kills it after ``limit`` seconds, and removes
    it."""
    began = time.monotonic()
    killed = []
    for member in running.members:
        was_up = member.service.is_up
        ended = containers.stop_container(member.engine.endpoint, member.service.id, limit)
        if was_up and ended and ended.exit_code == _KILLED:
            killed.append(ended.name)
    return Stopped(running, time.monotonic() - began, tuple(killed))


# The run command on one page: prepare, start, wait, record.


@dataclass(frozen=True)
class ServeResult:
    """A server that was started, or ran before (``already``). ``seconds`` is how long the wait for its first answer
    took: 0 where it answered at once, None where the command did not wait. ``put_back`` tells where the model is served
    by the image before, because its new one did not serve."""

    server: RunningServer
    already: bool
    seconds: float | None
    put_back: PutBack | None = None


def run_server(workspace: Workspace, request: ServeRequest, *, detach: bool, proc: Path = memory.PROC) -> ServeResult:
    """Serves a recipe or a model with the image that it is paired with; waits until it answers, unless ``detach``. The
    memory of this machine is read in ``proc``. A number that this engine lacks is brought back first. Candidates that
    an interrupted upgrade left are ended.

    Raises what `bring_back`, `preparation.prepare`, `starting.require_room`, `starting.start_server` and
    `readiness.wait_until_ready` do.
    """
    selection = preparation.selected(workspace.project, request)
    if isinstance(selection, SelectedImage) and not request.nodes:
        from builder.commands import rollback

        # Before hours of building, a mistake in the recipe is told.
        preparation.settings(workspace.project, selection, request, workspace.environment)
        rollback.bring_back(workspace, lock_file.read_project_lock(workspace.project), selection.image)
    candidates_of_interrupted_upgrade(workspace, selection.recipe.file)
    prepared = preview_run(workspace, request, proc=proc)
    limit = None
    if request.image:  # a number that was named to be measured, whichever is paired
        limit = model_revision.start_limit(
            workspace.project, lock_file.read_project_lock(workspace.project), prepared.selection.recipe.model
        )
    return serve_server(workspace, request, prepared, detach=detach, limit=limit)


def preview_run(workspace: Workspace, request: ServeRequest, *, proc: Path = memory.PROC) -> PreparedServer:
    """The server that `run` would start; nothing is started. Raises what `preparation.prepare` and
    `starting.require_room` do."""
    prepared = preparation.prepare(workspace, request)
    if not starting.is_running(prepared):
        leaving = tuple(filter(None, starting.existing_containers(prepared)))
        starting.require_room(prepared, leaving, workspace.report, proc)
    return prepared


def serve_server(
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
        selection_warning(selection),
        mods_warning(selection),
        model_revision.revision_warning(project, environ, selection.recipe),
        checkpoint_weights.weights_warning(project, lock_file.read_project_lock(project), selection)
        if selection.recipe.checkpoint
        else "",
    )
    for warning in filter(None, warnings):
        workspace.report(Message(warning))
    started = starting.start_server(prepared, environ)
    if started.was_running and answers(started.server):
        return ServeResult(started.server, already=True, seconds=0)
    if detach:
        return ServeResult(started.server, started.was_running, None)
    before = going_back.image_before(workspace, selection)
    workspace.report(WaitingStarted())
    try:
        crashes = readiness.CRASHES_BEFORE_ANOTHER if before else readiness.CRASHES
        seconds = readiness.wait_until_ready(project, started, workspace.report, crashes, limit)
        if before and isinstance(selection, SelectedImage):
            _require_probes(workspace, selection, started.server)
    except ServeFailedError as error:
        if before is None or not isinstance(selection, SelectedImage) or isinstance(error, NoImageHelpsError):
            raise
        return _run_put_back(workspace, request, selection, before, error)
    _record_answer(workspace, selection, seconds)
    return ServeResult(started.server, already=False, seconds=seconds)


def _require_probes(workspace: Workspace, served: SelectedImage, server: RunningServer) -> None:
    """Raises ServeFailedError where a new image fails a probe that its model requires; its server is ended then."""

    if failure := going_back.failed_probe(workspace, served, server):
        starting.remove_server(server)
        hint = f"`builder show {served.image}` has the result"
        raise ServeFailedError(failure, hint=hint)


def _run_put_back(
    workspace: Workspace, request: ServeRequest, served: SelectedImage, before: SelectedImage, error: ServeFailedError
) -> ServeResult:
    """Serves from the image before, and pairs the model with that once it answers. Raises ``error``, with why the image
    before does not serve either, where that is so; nothing is moved then."""
    model = served.recipe.model or ""
    # First of all: whatever happens now, this is not tried again for the same image.
    model_revision.record_answered(workspace.project, model, served.record.fingerprint, "replaced")
    workspace.report(Message(f"{error.message.splitlines()[0]}: going back to {before.image}"))
    try:
        prepared = preparation.prepare(workspace, replace(request, image=before.image))
        started = starting.start_server(prepared, workspace.environment)
        workspace.report(WaitingStarted())
        seconds = readiness.wait_until_ready(workspace.project, started, workspace.report)
    except BuilderError as also:
        reason = also.message.splitlines()[0]
        raise ServeFailedError(
            f"{error.message}\n{before.image}, the one before, does not serve it either: {reason}",
            log=error.log,
            hint=error.hint,
        ) from None
    result = going_back.record_going_back(workspace, served, before, error.message)
    _record_answer(workspace, before, seconds)
    return ServeResult(started.server, already=False, seconds=seconds, put_back=result)


def _record_answer(workspace: Workspace, selection: ServedImage, seconds: float) -> None:
    model = selection.recipe.model
    if model is None:
        return
    model_revision.record_revision(workspace, model, selection.recipe if selection.recipe.checkpoint else None)
    if isinstance(selection, SelectedImage):
        model_revision.record_answered(workspace.project, model, selection.record.fingerprint, "answered", seconds)


# The restart command: starts a server again as requested before, from the image that is paired with its model now.


def restart_server(
    workspace: Workspace, request: ServeRequest, *, detach: bool, proc: Path = memory.PROC
) -> ServeResult:
    """Stops the server called ``request.text`` and starts it again, with its earlier request and what ``request`` adds
    to that. One that does not run is started.

    Everything that can be checked is checked before the server is stopped. Raises what `commands.run.run` does.
    """
    running = pick(workspace.project, find_all(workspace), request.text)
    request = as_before(running.labels, request) if running else request
    prepared = preparation.prepare(workspace, request)
    candidates_of_interrupted_upgrade(workspace, prepared.selection.recipe.file)
    leaving = tuple(member.service for member in running.members) if running else ()
    if running or not starting.is_running(prepared):
        starting.require_room(prepared, leaving, workspace.report, proc)
    if running:
        starting.require_free_port(prepared, leaving=[member.service.name for member in running.members])
        if running.head.service.is_up:
            workspace.report(Message(f"stopping {running.name}, which serves from {running.image}"))
        end_server(running, STOPPING_SECONDS)
    return serve_server(workspace, request, prepared, detach=detach)


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
        container=container.again(before.get("container", {}), request.container),
    )
