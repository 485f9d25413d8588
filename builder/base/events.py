"""Events that commands report while they work, and results of checks. The command line decides how to show them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from builder.base.values import dataclass

Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check of a machine or a project. ``remedy`` is what to do, empty where all is well."""

    subject: str
    verdict: Verdict
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Message:
    """A line of text for the user: the step that begins now, or a warning about the plan."""

    text: str


@dataclass(frozen=True)
class Fact(Message):
    """A message about something that does not change while a command runs. It is reported once."""


@dataclass(frozen=True)
class TaskStarted:
    """The start of a task that may take longer than a second without reporting progress."""

    text: str


@dataclass(frozen=True)
class TaskFinished:
    """The end of such a task after ``seconds``."""

    text: str
    seconds: float


def as_messages(report: Report) -> Callable[[str], None]:
    """Returns a function that reports a text as a message."""
    return lambda text: report(Message(text))


@contextmanager
def task(report: Report, text: str) -> Iterator[None]:
    """Reports the block as a task. A task that fails is also reported as finished."""
    began = time.monotonic()
    report(TaskStarted(text))
    try:
        yield
    finally:
        report(TaskFinished(text, time.monotonic() - began))


@dataclass(frozen=True)
class TransferProgress:
    """The progress of a large transfer, in bytes; ``what`` names what is moved, and from or to where."""

    what: str
    current: int
    total: int


@dataclass(frozen=True)
class Stage:
    """A stage that replaces the stage before it; its text includes its progress."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class WaitingStarted(Stage):
    """The stage after everything has started: only the server's first answer is still missing."""

    name: str = "starting"


@dataclass(frozen=True)
class NodeEvent:
    """An event on a node: the progress of its transfer, or in the end a `Message`."""

    node: str
    event: object


def delayed_progress(report: Report, what: str) -> Callable[[int, int], None]:
    """Returns a callback that takes the bytes done and the total bytes, and reports them once a second has passed."""
    began = time.monotonic()

    def report_progress(current: int, total: int) -> None:
        if time.monotonic() - began > 1:
            report(TransferProgress(what, current, total))

    return report_progress


WAITING = Message("waiting for another process that writes images.lock")

Report = Callable[[object], None]
"""Takes an event of this module, or one of a build (``builder.engine.build_log``)."""


def ignore(_event: object) -> None:
    """A Report that drops every event."""
