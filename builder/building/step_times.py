"""How long each step took when it last ran, so that a build can say how long one may take. May vanish at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine import cache_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.engine.buildkit.progress import BuildStep
    from builder.project import Project

_SECTION = "seconds"
_REMEMBERED = 2000
_SHORTEST = 1.0


@dataclass(frozen=True)
class StepTimes:
    """The seconds of each step by its label, as they were when it last ran. Reported before a build begins."""

    seconds: Mapping[str, float]


def load(project: Project) -> StepTimes:
    """The times of the steps that ran in this project."""
    stored = cache_file.load(_file(project)).get(_SECTION, {})
    return StepTimes({name: float(seconds) for name, seconds in stored.items()})


def keep(project: Project, steps: Iterable[BuildStep]) -> None:
    """Remembers the steps that ran for a second or more and came to their end."""
    fresh = {s.label: s.seconds for s in steps if s.seconds >= _SHORTEST and not s.error and not s.internal}
    if fresh:
        known = load(project).seconds
        # The latest come last, and the oldest go first.
        older = {name: took for name, took in known.items() if name not in fresh}
        cache_file.store(_file(project), _SECTION, dict([*older.items(), *fresh.items()][-_REMEMBERED:]))


def _file(project: Project) -> Path:
    return project.state / "steptimes.json"
