"""The bisect command finds the change that broke a model.

The command comes first, then the user's verdict on a candidate, the state, and the stop.
The result is one commit, one package or one line.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.base.errors import ConflictError, FileProblemsError, NothingToDoError, UnsafePathError, UsageError
from builder.base.events import Message
from builder.building import work_folder
from builder.commands import bisect_ending, bisect_trying
from builder.commands.bisect_trying import BisectReport
from builder.lab.bisect import search, session
from builder.lab.bisect.search import Conclusion, Trial, TryCandidate

if TYPE_CHECKING:
    from builder.commands.bisect_trying import BisectRequest
    from builder.lab.bisect.session import Bisection
    from builder.numbers.workspace import Workspace


# The bisect command: which change broke a model, from the numbers that are there to the one commit, package or line.


def bisect_images(workspace: Workspace, request: BisectRequest) -> BisectReport:
    """Looks for the change between two numbers with which ``request.text`` went from good to bad. One that was
    interrupted goes on where it was.

    Raises what `bisect_trying.of_request` does, and ConflictError where another bisection is under way.
    """
    project = workspace.project
    bisect_trying.require_script(request.judge)
    work_folder.recover(workspace)
    with session.locked_bisection(project):
        bisection = session.read_bisection(project)
        if bisection is None:
            bisection = preview_bisect(workspace, request)
            for line in bisection.plan:
                workspace.report(Message(line))
            session.write_bisection(project, bisection)
        elif (bisection.target, bisection.judge, bisection.find_fix) != (
            request.text,
            request.judge.recorded,
            request.find_fix,
        ):
            again = f"`builder bisect {shlex.quote(bisection.target)}` with the same options goes on with it"
            raise ConflictError(
                f"a bisection of {bisection.target} was interrupted", hint=f"{again}, `builder bisect stop` ends it"
            )
        else:
            workspace.report(Message(f"going on with the bisection of {bisection.started}"))
            bisection = bisect_trying.again(workspace, replace(bisection, judge=request.judge))
            bisect_trying.stop_candidates(workspace, bisection)
        return go_on(workspace, bisection)


def preview_bisect(workspace: Workspace, request: BisectRequest) -> Bisection:
    """The bisection that is asked for, with its outlook; nothing is tried. Raises what `bisect_trying.of_request`
    does."""
    bisection = bisect_trying.of_request(workspace, request)
    shared = bisect_trying.context(workspace, bisection)
    return replace(bisection, outlook=bisect_trying.of_bisection(workspace, bisection, shared))


def go_on(workspace: Workspace, bisection: Bisection) -> BisectReport:
    """Takes all steps that are left; whatever ends them, the model is served as before, unless the user has to look.
    The caller holds the journal."""
    try:
        bisection, result = bisect_trying.go_on(workspace, bisection)
    except BaseException:
        bisect_trying.serve_as_before(workspace, bisection)
        raise
    if isinstance(result, Conclusion):
        return bisect_ending.of_conclusion(workspace, bisection, result)
    return BisectReport(bisection, look=result)


# The verdict of the user on the candidate that is being looked at; the next one follows.


def mark_bisection(workspace: Workspace, word: Literal["good", "bad", "skip"], note: str = "") -> BisectReport:
    """Notes the user's verdict and goes on. Raises NothingToDoError where nothing is being looked at."""
    project = workspace.project
    with session.locked_bisection(project):
        bisection = session.read_bisection(project)
        if bisection is None or bisection.waiting is None or bisection.judge.kind != "user":
            raise NothingToDoError(
                "no candidate is waiting for a verdict", hint="`builder bisect MODEL` begins, `bisect status` tells"
            )
        waiting, bisection = bisection.waiting, bisect_trying.again(workspace, bisection)
        skipped = (note or "skipped") if word == "skip" else ""
        bisection = bisection.with_trial(Trial(waiting, int(word == "good"), int(word == "bad"), skipped, note=note))
        session.write_bisection(project, bisection)
        bisect_trying.stop_candidates(workspace, bisection)
        return go_on(workspace, bisection)


# The state of a bisection: how far it is, and what it has tried.


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


def bisection_status(workspace: Workspace) -> BisectState:
    """Tells how far a bisection is. Raises NothingToDoError where there is none."""
    bisection = session.read_bisection(workspace.project)
    if bisection is None:
        raise NothingToDoError("no bisection is under way", hint="`builder bisect MODEL` begins one")
    bisection = bisect_trying.again(workspace, bisection)
    subject = bisect_trying.context(workspace, bisection).subject
    step = search.next_step(subject, bisection.answers)
    left = bisect_trying.steps_left(bisection, subject)
    took = [trial.seconds for trial in bisection.done if trial.seconds]
    return BisectState(
        bisection,
        tuple(
            f"{bisect_trying.of_candidate(trial.candidate, bisection.repository)}:{bisect_trying.of_trial(trial)[1:]}"
            for trial in bisection.done
        ),
        bisect_trying.of_candidate(step.candidate, bisection.repository) if isinstance(step, TryCandidate) else "",
        left,
        left * sum(took) / len(took) if took else None,
        bisect_trying.repository(workspace.project),
    )


# The end of a bisection before it has come to one.


def stop_bisection(workspace: Workspace) -> int:
    """Serves the model as before, removes the candidates and the journal; returns how many candidates there were. A
    server that is no longer known by the name of the bisection is left, and reported.
    Raises NothingToDoError where no bisection is under way."""
    project = workspace.project
    with session.locked_bisection(project):
        bisection = session.read_bisection(project)
        if bisection is None:
            raise NothingToDoError("no bisection is under way")
        try:
            bisect_trying.serve_as_before(workspace, bisect_trying.again(workspace, bisection))
        except (ConflictError, FileProblemsError, UnsafePathError, UsageError) as error:
            workspace.report(Message(f"the server of {bisection.target} was left as it is: {error.message}"))
        count = bisect_trying.remove_all(workspace)
        session.remove_bisection(project)
        return count
