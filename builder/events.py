"""What verbs tell while they work; the command line decides how to show it."""

from __future__ import annotations

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


WAITING = Said("waiting for another process that writes images.lock")

Report = Callable[[object], None]
"""Takes a Said, a Moved, or one of the engine's progress events (``builder.engine.progress``)."""
