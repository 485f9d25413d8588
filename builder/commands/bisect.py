"""The bisect command: which change broke a model, from the numbers that are there to the one commit, package or
line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import humanize
from builder.bisecting import journal
from builder.bisecting.search import Conclusion
from builder.building import work_folder
from builder.commands.bisect_parts import beginning, ending, judging, serving, steps, words
from builder.commands.bisect_parts.report import BisectReport
from builder.errors import ConflictError
from builder.events import Message
from builder.lock import reading
from builder.lock.model import ImageName

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
            bisection = beginning.of_request(workspace, request)
            _tell_plan(workspace, bisection)
            journal.write(project, bisection)
        elif (bisection.target, bisection.judge, bisection.find_fix) != (request.text, request.judge, request.find_fix):
            again = f"`builder bisect {bisection.target}` with the same options goes on with it"
            raise ConflictError(
                f"a bisection of {bisection.target} was interrupted", hint=f"{again}, `builder bisect stop` ends it"
            )
        else:
            workspace.report(Message(f"going on with the bisection of {bisection.started}"))
            serving.stop_candidates(workspace, bisection)
        return go_on(workspace, bisection)


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


def _tell_plan(workspace: Workspace, bisection: Bisection) -> None:
    """Tells what is ahead: the steps, and the disk that they take. The time of a step is known after the ends."""
    subject = steps.context(workspace, bisection).subject
    first, last = (ImageName(bisection.repository, bisection.numbers[place]) for place in (0, -1))
    between = len(bisection.numbers) - 2
    record = reading.of(workspace.project).image(last)
    numbers = f", {humanize.counted(between, 'number')} between them" if between else ""
    size = f"; a candidate's image is {humanize.size(record.size)}, less the layers that it shares" if record else ""
    steps_ahead = humanize.counted(words.steps_left(bisection, subject), "step")
    lines = (
        f"from {first} to {last}{numbers}",
        f"about {steps_ahead}, and 10 more for a thousand commits{size}",
        f"axes: {', '.join(words.axes_of(bisection, subject)) or 'none'}",
    )
    for line in lines:
        workspace.report(Message(line))
