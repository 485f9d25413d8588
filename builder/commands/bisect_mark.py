"""The verdict of the user on the candidate that is being looked at; the next one follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from builder.bisecting import journal
from builder.bisecting.trials import Trial
from builder.commands import bisect
from builder.commands.bisect_parts import beginning, serving
from builder.errors import NothingToDoError

if TYPE_CHECKING:
    from builder.commands.bisect_parts.report import BisectReport
    from builder.workspace import Workspace


def run(workspace: Workspace, word: Literal["good", "bad", "skip"], note: str = "") -> BisectReport:
    """Notes the user's verdict and goes on. Raises NothingToDoError where nothing is being looked at."""
    project = workspace.project
    with journal.locked(project):
        bisection = journal.read(project)
        if bisection is None or bisection.waiting is None or bisection.judge.kind != "user":
            raise NothingToDoError(
                "no candidate is waiting for a verdict", hint="`builder bisect MODEL` begins, `bisect status` tells"
            )
        waiting, bisection = bisection.waiting, beginning.again(workspace, bisection)
        skipped = (note or "skipped") if word == "skip" else ""
        bisection = bisection.with_trial(Trial(waiting, int(word == "good"), int(word == "bad"), skipped, note=note))
        journal.write(project, bisection)
        serving.stop_candidates(workspace, bisection)
        return bisect.go_on(workspace, bisection)
