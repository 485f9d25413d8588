"""The end of a bisection: what was found, and both sides as build directories."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from builder import humanize, timestamp
from builder.bisecting import journal
from builder.building import work_folder
from builder.commands.bisect_parts import culprit_facts, making, serving, steps
from builder.commands.bisect_parts.report import BisectReport
from builder.events import Message
from builder.plan import bake
from builder.storage import atomic_folder

if TYPE_CHECKING:
    from builder.bisecting.search import Conclusion
    from builder.bisecting.session import Bisection
    from builder.commands.bisect_parts.steps import BisectContext
    from builder.plan.model import StagedFile
    from builder.workspace import Workspace

_OUTSIDE = "the cause may lie outside of the images: the driver, memory, options or weights"
# Why nothing was found, and what to do.
_ENDINGS = {
    "passes": (
        "the end that should fail passes",
        f"judge by what shows the fault, with another --run or --probe; or {_OUTSIDE}",
    ),
    "fails": (
        "the end that should pass fails as well",
        f"--good N names another number that passed; or {_OUTSIDE}",
    ),
    "alike": (
        "both ends fail about as often: no number of trials tells them apart",
        "judge by what fails more clearly: a script of --run may try several times, and count",
    ),
    "end untried": (
        "an end could not be tried",
        "mend what it says, and give the same command again; or name other ends by --good N and --bad N",
    ),
    "nothing differs": ("nothing that is recorded differs between the two numbers", _OUTSIDE),
}


def of_conclusion(workspace: Workspace, bisection: Bisection, conclusion: Conclusion) -> BisectReport:
    """Ends a bisection: writes what was found, serves as before, removes the candidates, and forgets the journal."""
    shared = steps.context(workspace, bisection)
    report = BisectReport(bisection, conclusion, problem=_problem(bisection, conclusion))
    if conclusion.ending == "found":
        report = _found(workspace, bisection, conclusion, shared)
    serving.serve_as_before(workspace, bisection)
    count = making.remove_all(workspace)
    if count:
        workspace.report(Message(f"removed {humanize.counted(count, 'candidate')}; what was cached of them stays"))
    journal.remove(workspace.project)
    return report


def _problem(bisection: Bisection, conclusion: Conclusion) -> str:
    if conclusion.ending == "found":
        return ""
    reason, advice = _ENDINGS[_kind(bisection, conclusion)]
    seen = []
    for number in (bisection.numbers[0], bisection.numbers[-1]):
        if own := bisection.of_number(number):
            passed, failed = sum(trial.passed for trial in own), sum(trial.failed for trial in own)
            notes = [trial.skipped or trial.note for trial in own if trial.skipped or trial.note]
            last = f": {notes[-1]}" if notes else ""
            seen.append(f"{bisection.repository}:{number}: passed {passed}, failed {failed}{last}")
    return "\n".join([reason, *seen, f"what to do: {advice}"])


def _kind(bisection: Bisection, conclusion: Conclusion) -> str:
    """The kind of end. The search calls the two numbers by their places: what was mended fails at the first."""
    if conclusion.ending in {"good end fails", "bad end passes"}:
        return "fails" if (conclusion.ending == "good end fails") != bisection.find_fix else "passes"
    return conclusion.ending


def _found(workspace: Workspace, bisection: Bisection, conclusion: Conclusion, shared: BisectContext) -> BisectReport:
    between = _numbers(shared, conclusion)
    span = shared.spans(*between)
    culprits = tuple(
        culprit_facts.of(workspace, bisection, span, conclusion, culprit) for culprit in conclusion.culprits
    )
    files: dict[str, StagedFile] = {}
    for side, tried in (("good", conclusion.good), ("bad", conclusion.bad)):
        build = None if tried.number is not None else making.build_of(workspace, span, tried)
        if build:
            own = {**build[0], bake.FILE: bake.bake_file(build[1])}
            files |= {f"{side}/{path}": file for path, file in own.items()}
    report = BisectReport(bisection, conclusion, culprits, between=between)
    if not files:
        return report
    folder = workspace.project.bisecting / f"found-{timestamp.now().replace(':', '')}"
    fresh = folder.with_name(f"new-{folder.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    work_folder.write(fresh, files)
    atomic_folder.put_in_place(fresh, folder)
    return replace(report, folder=workspace.project.relative(folder))


def _numbers(shared: BisectContext, conclusion: Conclusion) -> tuple[int, int]:
    """The two neighbouring numbers between which it was found."""
    numbers = shared.subject.numbers
    for tried in (conclusion.bad, conclusion.good):
        if tried.number is None:
            return tried.old, tried.new
    return tuple(sorted((conclusion.good.number or 0, conclusion.bad.number or 0), key=numbers.index))  # type: ignore[return-value]
