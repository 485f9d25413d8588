"""The state of a bisection: how far it is, and what it has tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.bisecting import journal, search
from builder.bisecting.search import TryCandidate
from builder.commands.bisect_parts import beginning, making, steps, words
from builder.errors import NothingToDoError

if TYPE_CHECKING:
    from builder.bisecting.session import Bisection
    from builder.workspace import Workspace


@dataclass(frozen=True)
class BisectState:
    """The state of a bisection: what was tried, in words; the candidate that is ``next``, and about how many steps and
    seconds are left, None where no trial has told how long one takes."""

    bisection: Bisection
    tried: tuple[str, ...]
    next: str
    steps_left: int
    seconds_left: float | None
    images: str


def run(workspace: Workspace) -> BisectState:
    """Tells how far a bisection is. Raises NothingToDoError where there is none."""
    bisection = journal.read(workspace.project)
    if bisection is None:
        raise NothingToDoError("no bisection is under way", hint="`builder bisect MODEL` begins one")
    bisection = beginning.again(workspace, bisection)
    subject = steps.context(workspace, bisection).subject
    step = search.next_step(subject, bisection.answers)
    left = words.steps_left(bisection, subject)
    took = [trial.seconds for trial in bisection.done if trial.seconds]
    return BisectState(
        bisection,
        tuple(
            f"{words.of_candidate(trial.candidate, bisection.repository)}:{words.of_trial(trial)[1:]}"
            for trial in bisection.done
        ),
        words.of_candidate(step.candidate, bisection.repository) if isinstance(step, TryCandidate) else "",
        left,
        left * sum(took) / len(took) if took else None,
        making.repository(workspace.project),
    )
