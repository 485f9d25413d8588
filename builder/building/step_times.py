"""The time that each step took when it last ran, shown while it runs again. The file may be deleted at any time."""

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
    """The seconds that each step took when it last ran, by its label. Reported before a build begins."""

    seconds: Mapping[str, float]


def load(project: Project) -> StepTimes:
    """Reads the times of the steps that ran in this project."""
    stored = cache_file.load(_file(project)).get(_SECTION, {})
    return StepTimes({name: float(seconds) for name, seconds in stored.items()})


def compiles(title: str) -> bool:
    """True for the title of a step that compiles a source."""
    return title.startswith("the ") and title.endswith(" wheel")


def expected(times: StepTimes, titles: Iterable[str]) -> float | None:
    """Returns the seconds that these steps take, as long as each did before; None where one that compiles never ran
    here."""
    wanted = tuple(titles)
    if any(compiles(title) and title not in times.seconds for title in wanted):
        return None
    return sum(times.seconds.get(title, 0.0) for title in wanted)


def store(project: Project, steps: Iterable[BuildStep]) -> None:
    """Stores the times of the steps that took a second or more and succeeded."""
    fresh = {s.label: s.seconds for s in steps if s.seconds >= _SHORTEST and not s.error and not s.internal}
    if fresh:
        # The latest stand last; the oldest, at the front, are dropped first.
        older = {name: took for name, took in load(project).seconds.items() if name not in fresh}
        cache_file.store(_file(project), _SECTION, dict([*older.items(), *fresh.items()][-_REMEMBERED:]))


def _file(project: Project) -> Path:
    return project.state / "steptimes.json"
