"""Waiting for a server that was started until it answers, or until it is plain that it never will."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from builder.engine import services
from builder.errors import NothingToDoError, ServeFailedError
from builder.events import Report, Said
from builder.lock import reading
from builder.serving import phases
from builder.verbs import run

if TYPE_CHECKING:
    from builder.engine.services import Service
    from builder.project import Project
    from builder.serving.running import Member, Running
    from builder.verbs.run import Started

_POLL_SECONDS = 0.5
# A first crash may be the memory that another server has not given back yet; a second one is a loop.
CRASHES = 2
TAIL = 20


def wait(project: Project, started: Started, report: Report) -> float:
    """Waits until it answers, telling each `phases.Phase`; returns the seconds that took.

    When it crashes again and again it is removed, its log is kept, and ServeFailedError says how it ended. When this is
    interrupted, what this command started is stopped, and what was there before goes on.
    """
    running = started.running
    if running.head.service.status == "running" and running.head.service.health == "unhealthy":
        raise NothingToDoError(
            f"{running.name} is up and does not answer",
            hint=f"`builder logs {running.name}` may say why; `builder restart {running.name}` starts it anew",
        )
    try:
        return _watch(running, report)
    except _CrashLoopError as error:
        failure = _failure(project, started, error)
        run.remove(running)
        raise failure from None
    except KeyboardInterrupt:
        if not started.already:
            report(Said(f"stopping {running.name}; with `--detach` it starts without anybody waiting"))
            run.remove(running)
        raise


class _CrashLoopError(Exception):
    """A member ended so many times before the model was served."""

    def __init__(self, member: Member, crashes: int) -> None:
        super().__init__()
        self.member = member
        self.crashes = crashes


def _watch(running: Running, report: Report) -> float:
    began = time.monotonic()
    head = running.head
    after, crashed = "", 0
    phase: phases.Phase | None = None
    while True:
        now, *_ = states = [_state(running, member) for member in running.members]
        lines = services.log(head.place.endpoint, now.id, after=after)
        after = lines[-1].written if lines else after
        for latest in filter(None, (phases.of_line(line.text) for line in lines)):
            if latest != phase:
                phase = latest
                report(phase)
        if _answers(now, phase):
            return time.monotonic() - began
        for member, state in zip(running.members, states, strict=True):
            crashes = state.restarts - member.service.restarts
            if crashes >= CRASHES:
                raise _CrashLoopError(member, crashes)
            if crashes > crashed:
                crashed = crashes
                where = f" on {node}" if (node := running.node_of(member)) else ""
                report(Said(f"it ended by itself{where} after {time.monotonic() - began:.0f} s and is started again"))
        time.sleep(_POLL_SECONDS)


def _state(running: Running, member: Member) -> Service:
    """How a member is now. Raises NothingToDoError where there is nothing more to wait for."""
    now = services.find(member.place.endpoint, member.service.id)
    if now is None or not now.is_up:
        raise NothingToDoError(f"{running.name} was stopped from outside while it started")
    return now


def _answers(now: Service, phase: phases.Phase | None) -> bool:
    """As its health check says; where it has none, because nobody knows its port, as its log says."""
    return now.health == "healthy" if now.health else phase is not None and phase.name == phases.READY


def _failure(project: Project, started: Started, error: _CrashLoopError) -> ServeFailedError:
    """What to say of a server that never answered; its whole log is kept in a file."""
    service, node = error.member.service, started.running.node_of(error.member)
    lines = [line.text for line in services.log(error.member.place.endpoint, service.id)]
    path = project.state / "serve-logs" / f"{service.name}{node and f'@{node}'}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    what = f"{service.name}{node and f' on node {node}'} ended {error.crashes} times before it answered"
    cause = phases.cause(lines)
    return ServeFailedError(
        "\n".join([f"{what}: {cause}" if cause else what, *lines[-TAIL:]]),
        log=project.relative(path),
        hint=_way_back(project, started),
    )


def _way_back(project: Project, started: Started) -> str:
    model = started.found.recipe.model
    held = reading.read(project.lock).models.get(model or "")
    if held and held.previous:
        return f"`builder rollback {model}` goes back to {held.previous[0].image}; then `builder run` again"
    return f"no other image was ever paired with {model or 'it'} to go back to: look at the log"
