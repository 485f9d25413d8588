"""The bisect command: which change broke a model, from the numbers that are there to the one commit, package or
line."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.bisecting import journal
from builder.bisecting.search import Conclusion
from builder.building import work_folder
from builder.commands.bisect_parts import beginning, ending, judging, outlook, serving, steps
from builder.commands.bisect_parts.report import BisectReport
from builder.errors import ConflictError
from builder.events import Message

if TYPE_CHECKING:
    from builder.bisecting.session import Bisection
    from builder.commands.bisect_parts.beginning import BisectRequest
    from builder.workspace import Workspace


def run(workspace: Workspace, request: BisectRequest) -> BisectReport:
    """Looks for the change between two numbers with which ``request.text`` went from good to bad. One that was
    interrupted goes on where it was.

    Raises what `beginning.of_request` does, and ConflictError where another bisection is under way.
    """
    project = workspace.project
    judging.require_script(request.judge)
    work_folder.recover(workspace)
    with journal.locked(project):
        bisection = journal.read(project)
        if bisection is None:
            bisection = preview(workspace, request)
            for line in bisection.plan:
                workspace.report(Message(line))
            journal.write(project, bisection)
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
            bisection = beginning.again(workspace, replace(bisection, judge=request.judge))
            serving.stop_candidates(workspace, bisection)
        return go_on(workspace, bisection)


def preview(workspace: Workspace, request: BisectRequest) -> Bisection:
    """The bisection that is asked for, with its outlook; nothing is tried. Raises what `beginning.of_request` does."""
    bisection = beginning.of_request(workspace, request)
    shared = steps.context(workspace, bisection)
    return replace(bisection, outlook=outlook.of_bisection(workspace, bisection, shared))


def go_on(workspace: Workspace, bisection: Bisection) -> BisectReport:
    """Takes all steps that are left; whatever ends them, the model is served as before, unless the user has to look.
    The caller holds the journal."""
    try:
        bisection, result = steps.go_on(workspace, bisection)
    except BaseException:
        serving.serve_as_before(workspace, bisection)
        raise
    if isinstance(result, Conclusion):
        return ending.of_conclusion(workspace, bisection, result)
    return BisectReport(bisection, look=result)
