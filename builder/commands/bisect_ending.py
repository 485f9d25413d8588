"""The end of a bisection reports the culprit, with both sides as build directories.

The change of a base image comes first, then the facts of the culprit, and the ending.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import BuildFailedError, ImageStateError, SourceError
from builder.base.events import Message
from builder.base.files import put_folder_in_place
from builder.building import work_folder
from builder.commands import bisect_trying
from builder.commands.bisect_trying import BisectReport, FoundCulprit
from builder.engine import installed
from builder.lab.bisect import points, search, session
from builder.lock.model import ImageName
from builder.plan import making
from builder.sources import mirror, vllm_versions, wheels

if TYPE_CHECKING:
    from builder.commands.bisect_trying import BisectContext
    from builder.lab.bisect.points import NumberSpan
    from builder.lab.bisect.search import Conclusion, Culprit
    from builder.lab.bisect.session import Bisection
    from builder.numbers.workspace import Workspace
    from builder.plan.plan_model import StagedFile


# The change of a base image: the packages of the distribution, in the candidates on either side.


def packages(workspace: Workspace, span: NumberSpan, conclusion: Conclusion) -> str:
    """The packages in which they differ, as the lines of a diff; empty where an image cannot be asked any more."""
    workspace.report(Message("comparing the packages of the two images"))
    try:
        with work_folder.create(workspace, "bisect", {}) as work:
            good, bad = (
                installed.read_system_packages(
                    workspace.engine, bisect_trying.tag_of(workspace, span, candidate), work.labels
                )
                for candidate in (conclusion.good, conclusion.bad)
            )
    except (BuildFailedError, ImageStateError, SourceError) as error:
        workspace.report(Message(error.message))
        return ""
    lines = (
        f"{sign}package {name} {side[name]}\n"
        for name in sorted({*good, *bad})
        for sign, side in (("-", good), ("+", bad))
        if good.get(name) != bad.get(name) and name in side
    )
    return "".join(lines)


# The facts of a culprit: the commit upstream or the change itself, and what can be done now.


def culprit_facts(
    workspace: Workspace, bisection: Bisection, span: NumberSpan, conclusion: Conclusion, culprit: Culprit
) -> FoundCulprit:
    """The facts of a culprit that lies between the two numbers of ``span``. Where upstream does not answer, they are
    left out, and a message says so."""
    unit = culprit.unit
    last = ImageName(bisection.repository, bisection.numbers[-1])
    definition = points.definition(workspace.project, last) or "DEFINITION"
    if tree := span.tree(unit):
        good, bad = culprit.good or tree.old_commit, culprit.bad or tree.new_commit
        try:
            facts = vllm_versions.commit_facts(workspace.project.mirrors, tree.url, bad)
        except SourceError as error:
            workspace.report(Message(error.message))
            facts = None
        hint = f"`builder lock {definition} --update {unit.rpartition(': ')[2]}={good}` stays on the commit before"
        return FoundCulprit(replace(culprit, good=good, bad=bad), facts, hint=hint)
    if package := span.package(unit):
        ends = span.versions(package)
        culprit = replace(culprit, good=culprit.good or ends[0], bad=culprit.bad or ends[1])
        if package == points.PACKAGE:
            return _of_wheels(workspace, span, culprit, definition)
        file = f"dockerfiles/{definition}/image.yaml"
        hint = f"`{package}=={culprit.good}` under `python.packages` in {file} stays on that"
        return FoundCulprit(culprit, hint=hint)
    text = points.change_of(span, unit)
    if culprit.axis == search.BASE:
        text += packages(workspace, span, conclusion)
    path = {
        "mod": f"mods/{culprit.axis.removeprefix('mod ')}",
        "recipe": bisection.recipe,
        search.TEMPLATE: f"dockerfiles/{definition} dockerfiles/_parts",
    }.get(culprit.axis.partition(" ")[0])
    undone = f"`builder rollback {bisection.target}` goes back to {span.old}"
    return FoundCulprit(culprit, text=text, hint=f"`git log -p {path}` shows who changed it" if path else undone)


def _of_wheels(workspace: Workspace, span: NumberSpan, culprit: Culprit, definition: str) -> FoundCulprit:
    """A culprit among the wheels of vLLM: a commit, where one of its ends names one, else the two releases."""
    project, last, facts = workspace.project, culprit.good, None
    if any(map(mirror.is_commit, (culprit.good, culprit.bad))):
        try:
            good, bad = (points.whole(workspace, point) for point in (culprit.good, culprit.bad))
            facts = points.facts(workspace, bad)
        except SourceError as error:
            workspace.report(Message(error.message))
        else:
            last = good if wheels.named(last) else last
            culprit = replace(culprit, good=good, bad=bad)
    return FoundCulprit(culprit, facts, hint=points.to_stay_on(project, span, definition, last))


# The end of a bisection: what was found, and both sides as build directories.

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
    shared = bisect_trying.context(workspace, bisection)
    report = BisectReport(bisection, conclusion, problem=_problem(bisection, conclusion))
    if conclusion.ending == "found":
        report = _found(workspace, bisection, conclusion, shared)
    bisect_trying.serve_as_before(workspace, bisection)
    count = bisect_trying.remove_all(workspace)
    if count:
        workspace.report(Message(f"removed {words.counted(count, 'candidate')}; what was cached of them stays"))
    session.remove_bisection(workspace.project)
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
    culprits = tuple(culprit_facts(workspace, bisection, span, conclusion, culprit) for culprit in conclusion.culprits)
    files: dict[str, StagedFile] = {}
    for side, tried in (("good", conclusion.good), ("bad", conclusion.bad)):
        build = None if tried.number is not None else bisect_trying.build_of(workspace, span, tried)
        if build:
            own = {**build[0], making.FILE: making.bake_file(build[1])}
            files |= {f"{side}/{path}": file for path, file in own.items()}
    report = BisectReport(bisection, conclusion, culprits, between=between)
    if not files:
        return report
    folder = workspace.project.bisecting / f"found-{words.now().replace(':', '')}"
    fresh = folder.with_name(f"new-{folder.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    work_folder.write_work_folder(fresh, files)
    put_folder_in_place(fresh, folder)
    return replace(report, folder=workspace.project.relative(folder))


def _numbers(shared: BisectContext, conclusion: Conclusion) -> tuple[int, int]:
    """The two neighbouring numbers between which it was found."""
    numbers = shared.subject.numbers
    for tried in (conclusion.bad, conclusion.good):
        if tried.number is None:
            return tried.old, tried.new
    return tuple(sorted((conclusion.good.number or 0, conclusion.bad.number or 0), key=numbers.index))  # type: ignore[return-value]
