"""Waiting for a server that was started until it answers, or until it is plain that it never will."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from builder import phases, run
from builder.engine import services
from builder.errors import NothingToDoError, ServeFailedError
from builder.events import Report, Said
from builder.lock import reading

if TYPE_CHECKING:
    from builder.engine.services import Service
    from builder.project import Project
    from builder.run import Started
    from builder.running import Member

_POLL_SECONDS = 0.5
# A first crash may be the memory that another server has not given back yet; a second one is a loop.
CRASHES = 2
TAIL = 20


def wait(project: Project, started: Started, report: Report) -> float:
    """Waits until it answers, telling each `phases.Phase`; returns the seconds that took.

    When it crashes again and again it is removed, its log is kept, and ServeFailedError says how it ended. When this is
    interrupted, what this command started is stopped, and what was there before goes on.
    """
    try:
        return _watch(started.running.head, report)
    except _CrashLoopError as error:
        failure = _failure(project, started, error.crashes)
        run.remove(started.running)
        raise failure from None
    except KeyboardInterrupt:
        if not started.already:
            report(Said(f"stopping {started.running.name}; with `--detach` it starts without anybody waiting"))
            run.remove(started.running)
        raise


class _CrashLoopError(Exception):
    """The server ended so many times before it ever answered."""

    def __init__(self, crashes: int) -> None:
        super().__init__()
        self.crashes = crashes


def _watch(head: Member, report: Report) -> float:
    began = time.monotonic()
    engine, first = head.place.endpoint, head.service.restarts
    after, crashes = "", 0
    phase: phases.Phase | None = None
    while True:
        now = services.find(engine, head.service.id)
        if now is None or not now.is_up:
            raise NothingToDoError(f"{head.service.name} was stopped from outside while it started")
        lines = services.log(engine, now.id, after=after)
        after = lines[-1].written if lines else after
        for latest in filter(None, (phases.of_line(line.text) for line in lines)):
            if latest != phase:
                phase = latest
                report(phase)
        if _answers(now, phase):
            return time.monotonic() - began
        if now.restarts - first > crashes:
            crashes = now.restarts - first
            if crashes >= CRASHES:
                raise _CrashLoopError(crashes)
            report(Said(f"it ended by itself after {time.monotonic() - began:.0f} s; the engine starts it again"))
        time.sleep(_POLL_SECONDS)


def _answers(now: Service, phase: phases.Phase | None) -> bool:
    """As its health check says; where it has none, because nobody knows its port, as its log says."""
    return now.health == "healthy" if now.health else phase is not None and phase.name == phases.READY


def _failure(project: Project, started: Started, crashes: int) -> ServeFailedError:
    """What to say of a server that never answered; its whole log is kept in a file."""
    head = started.running.head
    lines = [line.text for line in services.log(head.place.endpoint, head.service.id)]
    path = project.state / "serve-logs" / f"{head.service.name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    cause = phases.cause(lines)
    head_line = f"{started.running.name} ended {crashes} times before it answered" + (f": {cause}" if cause else "")
    return ServeFailedError(
        "\n".join([head_line, *lines[-TAIL:]]),
        log=project.relative(path),
        hint=_way_back(project, started),
    )


def _way_back(project: Project, started: Started) -> str:
    model = started.found.recipe.model
    held = reading.read(project.lock).models.get(model or "")
    if held and held.previous:
        return f"`builder rollback {model}` goes back to {held.previous[0].image}; then `builder run` again"
    return f"no other image was ever paired with {model or 'it'} to go back to: look at the log"
