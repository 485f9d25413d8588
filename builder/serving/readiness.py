"""Waiting for a server that was started until it answers, or until it is plain that it never will."""

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
    from builder.serving.starting import Started

_POLL_SECONDS = 0.5
# Its log may have been told not to say that it answers.
_ASK_SECONDS = 30
# A first crash may be the memory that another server has not given back yet; a second one is a loop.
CRASHES = 2
TAIL = 20


def wait(project: Project, started: Started, report: Report) -> float:
    """Waits until it answers, telling each `phases.Phase`; returns the seconds that took.

    When it crashes again and again it is removed, its log is kept, and ServeFailedError says how it ended. When this is
    interrupted, what this command started is stopped, and what was there before goes on.
    """
    running = started.running
    # The engine asks seldom once it has answered: what it says may be of ten minutes ago.
    now = running.head.service
    if now.status == "running" and now.health in {"healthy", "unhealthy"} and not answers(running):
        raise ConflictError(
            f"{running.name} is up and does not answer",
            hint=f"`builder logs {running.name}` may say why; `builder restart {running.name}` starts it anew",
        )
    try:
        return _watch(running, report)
    except _CrashLoopError as error:
        failure = _failure(project, started, error)
        starting.remove(running)
        raise failure from None
    except KeyboardInterrupt:
        if not started.already:
            report(Message(f"stopping {running.name}; with `--detach` it starts without anybody waiting"))
            starting.remove(running)
        raise


class _CrashLoopError(Exception):
    """A member ended so many times before the model was served."""

    def __init__(self, member: ServerMember, crashes: int) -> None:
        super().__init__()
        self.member = member
        self.crashes = crashes


def _watch(running: RunningServer, report: Report) -> float:
    began = asked = time.monotonic()
    head = running.head
    after, crashed = "", 0
    phase: phases.Phase | None = None
    while True:
        now, *_ = states = [_state(running, member) for member in running.members]
        lines = services.log(head.engine.endpoint, now.id, after=after)
        after = lines[-1].written if lines else after
        for latest in filter(None, (phases.of_line(line.text) for line in lines)):
            if latest != phase:
                phase = latest
                report(phase)
        pairs = zip(running.members, states, strict=True)
        ended = ((state.restarts - member.service.restarts, member) for member, state in pairs)
        crashes, member = max(ended, key=operator.itemgetter(0))
        if crashed < crashes < CRASHES:
            where = f" on {node}" if (node := running.node_of(member)) else ""
            report(Message(f"it ended by itself{where} after {time.monotonic() - began:.0f} s and is started again"))
        crashed = crashes
        is_due = time.monotonic() - asked > _ASK_SECONDS
        asked = time.monotonic() if is_due else asked
        if _is_ready(running, now, phase, is_due=is_due):
            return time.monotonic() - began
        if crashes >= CRASHES:
            raise _CrashLoopError(member, crashes)
        time.sleep(_POLL_SECONDS)


def _state(running: RunningServer, member: ServerMember) -> Service:
    """How a member is now. Raises ConflictError where there is nothing more to wait for."""
    now = services.find(member.engine.endpoint, member.service.id)
    if now is None or not now.is_up:
        raise ConflictError(f"{running.name} was stopped from outside while it started")
    return now


def _is_ready(running: RunningServer, now: Service, phase: phases.Phase | None, *, is_due: bool) -> bool:
    """As its log says where it has no health check, because nobody knows its port. Else as its health check says, or
    its own answer, for which it is asked when its log says that it gives one, and when that ``is_due``."""
    is_said = phase is not None and phase.name == phases.READY
    if not now.health:
        return is_said
    return now.health == "healthy" or ((is_said or is_due) and answers(running))


def _failure(project: Project, started: Started, error: _CrashLoopError) -> ServeFailedError:
    """What to say of a server that never answered; its whole log is kept in a file."""
    service, node = error.member.service, started.running.node_of(error.member)
    lines = [line.text for line in services.log(error.member.engine.endpoint, service.id)]
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
    model = started.selection.recipe.model
    held = reading.read(project.lock).models.get(model or "")
    if held and held.previous:
        return f"`builder rollback {model}` goes back to {held.previous[0].image}; then `builder run` again"
    return f"no other image was ever paired with {model or 'it'} to go back to: look at the log"
