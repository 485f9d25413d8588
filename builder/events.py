"""What verbs tell while they work; the command line decides how to show it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """A line for the person, such as what is being done now or a remark on the plan."""

    text: str


@dataclass(frozen=True)
class Moved:
    """How far something large has come, in bytes; ``what`` says what moves where."""

    what: str
    current: int
    total: int


def after_a_second(report: Report, what: str) -> Callable[[int, int], None]:
    """Takes how far something has come, and how far it is, in bytes; tells it where it takes longer than a second."""
    began = time.monotonic()

    def tell(current: int, total: int) -> None:
        if time.monotonic() - began > 1:
            report(Moved(what, current, total))

    return tell


WAITING = Said("waiting for another process that writes images.lock")

Report = Callable[[object], None]
"""Takes a Said, a Moved, or one of the engine's progress events (``builder.engine.buildkit.progress``)."""
