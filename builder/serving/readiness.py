"""Waiting for a started server until it answers, or until it is clear that it never will."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import humanize
from builder.definitions.recipes import cluster_guard
from builder.definitions.recipes.container import LABEL
from builder.engine import services
from builder.errors import ConflictError, NoImageHelpsError, ServeFailedError
from builder.events import Message, Report
from builder.evidence import gate
from builder.lock import reading
from builder.redaction import redacted
from builder.serving import crash_cause, phases, starting
from builder.serving.running import answers
from builder.storage import plain_file

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine.services import Service
    from builder.project import Project
    from builder.serving.answered import StartLimit
    from builder.serving.running import RunningServer, ServerMember
    from builder.serving.starting import StartedServer

_POLL_SECONDS = 0.5
# Logging may be set so that the log does not show that the server answers.
_PROBE_SECONDS = 30
# A first crash may come from memory that another server has not freed yet; a second one is a loop. Of several nodes
# each waits for the others as they were: one that is started again does not find its place.
CRASHES = 2
# One more where another image would take its place.
CRASHES_BEFORE_ANOTHER = 3
CRASHES_TOGETHER = 1
TAIL = 20
# Where one node ends, the others often do, a moment later; and what stops a server removes its containers one by one.
_SETTLE_SECONDS = 1.0
# The exit codes of what was told to end (SIGINT, SIGKILL, SIGTERM), and of what ended as if nothing were wrong.
_STOPPED = frozenset({0, 130, 137, 143})


def wait(
    project: Project,
    started: StartedServer,
    report: Report,
    crashes: int = CRASHES,
    limit: StartLimit | None = None,
) -> float:
    """Waits until the server answers, reporting each `phases.Phase`; returns the seconds that this took. One that
    serves alone may crash so many times. ``limit`` ends the wait for a candidate, which nobody watches.

    If it crashes repeatedly or the limit is over, it is removed, its log is kept, and ServeFailedError says why. If the
    wait is interrupted, a server that this command started is stopped, and one that was running before goes on.
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
        return _watch(server, report, crashes, limit)
    except _EndedError as error:
        failure = _failure(project, started, error)
        starting.remove(server)
        raise failure from None
    except _OverdueError as error:
        path = _keep_log(project, started.server, server.head)[0]
        starting.remove(server)
        raise ServeFailedError(
            str(error), log=project.relative(path), hint="the log says how far the start got"
        ) from None
    except KeyboardInterrupt:
        if not started.was_running:
            report(Message(f"stopping {server.name}; with `--detach` it starts without anybody waiting"))
            starting.remove(server)
        raise


@dataclass(frozen=True)
class _EndedMember:
    """A container that ended by itself, ``crashes`` times."""

    member: ServerMember
    crashes: int


class _EndedError(Exception):
    """One or several containers ended before the server answered, and it never will."""

    def __init__(self, ended: tuple[_EndedMember, ...]) -> None:
        super().__init__()
        self.ended = ended


class _OverdueError(Exception):
    """A candidate did not answer within its limit; the text says which limit that is."""


def _watch(server: RunningServer, report: Report, most_crashes: int, start_limit: StartLimit | None) -> float:
    began = probed = time.monotonic()
    head = server.head
    limit = most_crashes if len(server.members) == 1 else CRASHES_TOGETHER
    after, crashed = "", 0
    phase: phases.Phase | None = None
    if start_limit:
        most = humanize.duration(start_limit.seconds)
        report(Message(f"waiting for {server.name} for at most {most} ({start_limit.reason})"))
    while True:
        service, ended = _look(server)
        lines = services.log(head.engine.endpoint, service.id, after=after)
        after = lines[-1].written if lines else after
        for latest in filter(None, (phases.of_line(line.text) for line in lines)):
            if latest != phase:
                phase = latest
                report(phase)
        crashes = max((each.crashes for each in ended), default=0)
        if crashed < crashes < limit:
            report(Message(f"it ended by itself after {time.monotonic() - began:.0f} s and is started again"))
        crashed = crashes
        is_due = time.monotonic() - probed > _PROBE_SECONDS
        probed = time.monotonic() if is_due else probed
        if _is_ready(server, service, phase, is_due=is_due):
            return time.monotonic() - began
        is_over = crashes > 0 and not service.is_up  # the engine starts no candidate again
        if crashes >= limit or is_over:
            time.sleep(_SETTLE_SECONDS)
            _, ended = _look(server)
            raise _EndedError(ended)
        if start_limit and time.monotonic() - began > start_limit.seconds:
            reached = f"; the last phase in its log: {phase}" if phase else ""
            raise _OverdueError(f"{server.name} did not answer within {most} ({start_limit.reason}){reached}")
        time.sleep(_POLL_SECONDS)


def _look(server: RunningServer) -> tuple[Service, tuple[_EndedMember, ...]]:
    """Returns the present state of the head, and the containers that have ended by themselves. Raises ConflictError if
    the server was stopped, so that there is nothing more to wait for."""
    states = _states(server)
    if len(states) > 1 and not all(state.is_up for state in states):
        time.sleep(_SETTLE_SECONDS)
        states = _states(server)
    elif not states[0].is_up and states[0].exit_code in _STOPPED:
        raise _stopped_error(server)
    pairs = zip(server.members, states, strict=True)
    crashes = [(member, state.restarts - member.service.restarts + (not state.is_up)) for member, state in pairs]
    return states[0], tuple(_EndedMember(member, count) for member, count in crashes if count > 0)


def _states(server: RunningServer) -> list[Service]:
    states = [services.find(member.engine.endpoint, member.service.id) for member in server.members]
    existing = [state for state in states if state is not None]
    if len(existing) < len(states):
        raise _stopped_error(server)
    return existing


def _stopped_error(server: RunningServer) -> ConflictError:
    return ConflictError(f"{server.name} was stopped from outside while it started")


def _is_ready(server: RunningServer, service: Service, phase: phases.Phase | None, *, is_due: bool) -> bool:
    """Tells whether the server answers: by its log if it has no health check, as its port is not known; otherwise by
    its health check, or by a probe, which is made when the log says that it answers, and when one ``is_due``."""
    is_logged = phase is not None and phase.name == phases.READY
    if not service.health:
        return is_logged
    return service.health == "healthy" or ((is_logged or is_due) and answers(server))


def _failure(project: Project, started: StartedServer, error: _EndedError) -> ServeFailedError:
    """Returns the error for a server that never answered; the whole log of each container that ended is kept in a
    file."""
    texts, logs = [], []
    ended_logs = [(ended, *_keep_log(project, started.server, ended.member)) for ended in error.ended]
    # Those that ended because another did have nothing to tell.
    causes = [each for each in ended_logs if cluster_guard.ENDED_ELSEWHERE not in each[2]]
    for ended, path, lines in causes or ended_logs:
        name, node = started.server.labels[LABEL], started.server.node_of(ended.member)
        times = f" {ended.crashes} times" if ended.crashes > 1 else ""
        problem = f"{name}{node and f' on node {node}'} ended{times} before it answered"
        cause = crash_cause.cause(lines)
        texts.append("\n".join([f"{problem}: {cause}" if cause else problem, *lines[-TAIL:]]))
        logs.append(project.relative(path))
    known_cause = next((each for _, _, lines in causes or ended_logs if (each := crash_cause.known_cause(lines))), None)
    model = started.selection.recipe.model or started.server.name
    hints = [known_cause.hint.format(model=model)] if known_cause else []
    no_image_helps = known_cause is not None and not known_cause.in_image
    hint = "; ".join(hints if no_image_helps else [*hints, _rollback_hint(project, started)])
    if len(started.server.members) > 1:
        hint = f"`builder nodes check {started.selection.recipe.file}` tries the nodes and their links; {hint}"
    kind = NoImageHelpsError if no_image_helps else ServeFailedError
    return kind("\n".join(texts), log=", ".join(logs), hint=hint)


def _keep_log(project: Project, server: RunningServer, member: ServerMember) -> tuple[Path, list[str]]:
    """Keeps the whole log of a container in a file; returns the file and the lines."""
    lines = [line.text for line in services.log(member.engine.endpoint, member.service.id)]
    node = server.node_of(member)
    path = project.state / "serve-logs" / f"{server.labels[LABEL]}{node and f'@{node}'}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    plain_file.write(path, redacted("\n".join([*lines, ""])).encode())
    return path, lines


def _rollback_hint(project: Project, started: StartedServer) -> str:
    name = started.selection.recipe.model
    lock = reading.read(project.lock)
    model = lock.models.get(name or "")
    if name and model and (before := gate.pairing_before(project, {}, lock, name)):
        return f"`builder rollback {name}` goes back to {before.image}; then `builder run` again"
    if model and model.previous:
        return f"no image that {name} was paired with before can take its place: look at the log"
    return f"no other image was ever paired with {name or 'it'} to go back to: look at the log"
