"""Waiting for a started server until it answers, or until it is clear that it never will."""

from __future__ import annotations

import operator
import time
from typing import TYPE_CHECKING

from builder.engine import services
from builder.errors import ConflictError, ServeFailedError
from builder.events import Message, Report
from builder.lock import reading
from builder.serving import phases, starting
from builder.serving.running import answers

if TYPE_CHECKING:
    from builder.engine.services import Service
    from builder.project import Project
    from builder.serving.running import RunningServer, ServerMember
    from builder.serving.starting import StartedServer

_POLL_SECONDS = 0.5
# Logging may be set so that the log does not show that the server answers.
_PROBE_SECONDS = 30
# A first crash may come from memory that another server has not freed yet; a second one is a loop.
CRASHES = 2
TAIL = 20


def wait(project: Project, started: StartedServer, report: Report) -> float:
    """Waits until the server answers, reporting each `phases.Phase`; returns the seconds that this took.

    If it crashes repeatedly, it is removed, its log is kept, and ServeFailedError says how it ended. If the wait is
    interrupted, a server that this command started is stopped, and one that was running before goes on.
    """
    server = started.server
    # The engine probes seldom once the server has answered: the health it reports may be ten minutes old.
    service = server.head.service
    if service.status == "running" and service.health in {"healthy", "unhealthy"} and not answers(server):
        raise ConflictError(
            f"{server.name} is up and does not answer",
            hint=f"`builder logs {server.name}` may say why; `builder restart {server.name}` starts it anew",
        )
    try:
        return _watch(server, report)
    except _CrashLoopError as error:
        failure = _failure(project, started, error)
        starting.remove(server)
        raise failure from None
    except KeyboardInterrupt:
        if not started.was_running:
            report(Message(f"stopping {server.name}; with `--detach` it starts without anybody waiting"))
            starting.remove(server)
        raise


class _CrashLoopError(Exception):
    """A container ended ``crashes`` times before the server answered."""

    def __init__(self, member: ServerMember, crashes: int) -> None:
        super().__init__()
        self.member = member
        self.crashes = crashes


def _watch(server: RunningServer, report: Report) -> float:
    began = probed = time.monotonic()
    head = server.head
    after, crashed = "", 0
    phase: phases.Phase | None = None
    while True:
        service, *_ = states = [_service(server, member) for member in server.members]
        lines = services.log(head.engine.endpoint, service.id, after=after)
        after = lines[-1].written if lines else after
        for latest in filter(None, (phases.of_line(line.text) for line in lines)):
            if latest != phase:
                phase = latest
                report(phase)
        pairs = zip(server.members, states, strict=True)
        ended = ((state.restarts - member.service.restarts, member) for member, state in pairs)
        crashes, member = max(ended, key=operator.itemgetter(0))
        if crashed < crashes < CRASHES:
            where = f" on {node}" if (node := server.node_of(member)) else ""
            report(Message(f"it ended by itself{where} after {time.monotonic() - began:.0f} s and is started again"))
        crashed = crashes
        is_due = time.monotonic() - probed > _PROBE_SECONDS
        probed = time.monotonic() if is_due else probed
        if _is_ready(server, service, phase, is_due=is_due):
            return time.monotonic() - began
        if crashes >= CRASHES:
            raise _CrashLoopError(member, crashes)
        time.sleep(_POLL_SECONDS)


def _service(server: RunningServer, member: ServerMember) -> Service:
    """Returns the present state of a container. Raises ConflictError if it was stopped, so that there is nothing more
    to wait for."""
    service = services.find(member.engine.endpoint, member.service.id)
    if service is None or not service.is_up:
        raise ConflictError(f"{server.name} was stopped from outside while it started")
    return service


def _is_ready(server: RunningServer, service: Service, phase: phases.Phase | None, *, is_due: bool) -> bool:
    """Tells whether the server answers: by its log if it has no health check, as its port is not known; otherwise by
    its health check, or by a probe, which is made when the log says that it answers, and when one ``is_due``."""
    is_logged = phase is not None and phase.name == phases.READY
    if not service.health:
        return is_logged
    return service.health == "healthy" or ((is_logged or is_due) and answers(server))


def _failure(project: Project, started: StartedServer, error: _CrashLoopError) -> ServeFailedError:
    """Returns the error for a server that never answered; its whole log is kept in a file."""
    service, node = error.member.service, started.server.node_of(error.member)
    lines = [line.text for line in services.log(error.member.engine.endpoint, service.id)]
    path = project.state / "serve-logs" / f"{service.name}{node and f'@{node}'}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    problem = f"{service.name}{node and f' on node {node}'} ended {error.crashes} times before it answered"
    cause = phases.cause(lines)
    return ServeFailedError(
        "\n".join([f"{problem}: {cause}" if cause else problem, *lines[-TAIL:]]),
        log=project.relative(path),
        hint=_rollback_hint(project, started),
    )


def _rollback_hint(project: Project, started: StartedServer) -> str:
    name = started.selection.recipe.model
    model = reading.read(project.lock).models.get(name or "")
    if model and model.previous:
        return f"`builder rollback {name}` goes back to {model.previous[0].image}; then `builder run` again"
    return f"no other image was ever paired with {name or 'it'} to go back to: look at the log"
