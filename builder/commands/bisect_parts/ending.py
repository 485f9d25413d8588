"""The end of a bisection: what was found, both sides as build directories, the text for upstream, and what to do
now."""

from __future__ import annotations

import difflib
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from builder import humanize, timestamp
from builder.bisecting import journal, values
from builder.building import work_folder
from builder.commands.bisect_parts import (
    base_change,
    issue_text,
    making,
    points,
    revert_trial,
    reverting,
    serving,
    spans,
    steps,
    wheel_points,
)
from builder.commands.bisect_parts.report import BisectReport, FoundCulprit
from builder.errors import SourceError
from builder.events import Message
from builder.lock import reading
from builder.lock.model import ImageName
from builder.plan.model import StagedFile
from builder.sources.git import commit_row, remote_refs
from builder.sources.wheels import commit_wheel
from builder.storage import atomic_folder

if TYPE_CHECKING:
    from builder.bisecting.search import Conclusion, Culprit
    from builder.bisecting.session import Bisection, DoneTrial
    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.commands.bisect_parts.steps import BisectContext
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
    ends = [
        trial
        for trial in bisection.done
        if trial.trial.candidate.number in (bisection.numbers[0], bisection.numbers[-1])
    ]
    seen = [
        f"{bisection.repository}:{number}: passed {sum(each.trial.passed for each in own)}, failed "
        f"{sum(each.trial.failed for each in own)}{_last_note(own)}"
        for number in (bisection.numbers[0], bisection.numbers[-1])
        if (own := [each for each in ends if each.trial.candidate.number == number])
    ]
    return "\n".join([reason, *seen, f"what to do: {advice}"])


def _kind(bisection: Bisection, conclusion: Conclusion) -> str:
    """The kind of end. The search calls the two numbers by their places: what was mended fails at the first."""
    if conclusion.ending in {"good end fails", "bad end passes"}:
        return "fails" if (conclusion.ending == "good end fails") != bisection.find_fix else "passes"
    return conclusion.ending


def _last_note(own: list[DoneTrial]) -> str:
    note = next((each.trial.skipped or each.note for each in reversed(own) if each.trial.skipped or each.note), "")
    return f": {note}" if note else ""


def _found(workspace: Workspace, bisection: Bisection, conclusion: Conclusion, shared: BisectContext) -> BisectReport:
    span = shared.spans(*_numbers(shared, conclusion))
    culprits = tuple(_facts(workspace, bisection, span, conclusion, culprit) for culprit in conclusion.culprits)
    files: dict[str, StagedFile] = {}
    for side, tried in (("good", conclusion.good), ("bad", conclusion.bad)):
        build = None if tried.number is not None else making.build_of(workspace, span, tried)
        if build:
            files |= {f"{side}/{path}": file for path, file in making.with_bake_file(build).items()}
    report = BisectReport(bisection, conclusion, culprits)
    revert = None if bisection.find_fix else reverting.mod_of(workspace, report, span)
    if revert:
        files |= {f"mods/{revert.name}/{path}": file for path, file in revert.files.items()}
        outcome = revert_trial.try_on(workspace, bisection, revert) if revert.applies else None
        told = outcome.told if outcome else "not tried in an image"
        report = replace(report, reverted=f"{revert.told}; {told}", revert_verdict=outcome.word if outcome else "")
    files["issue.md"] = StagedFile(issue_text.write(report, span).encode())
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


def _facts(
    workspace: Workspace, bisection: Bisection, span: NumberSpan, conclusion: Conclusion, culprit: Culprit
) -> FoundCulprit:
    tree = points.tree_of(span, culprit.unit)
    if tree:
        old, new = (address.partition("#")[2] for address in (tree.old, tree.new))
        good, bad = culprit.good or old, culprit.bad or new
        url = tree.new.partition("#")[0]
        try:
            facts = commit_row.facts(workspace.project.mirrors, url, bad)
        except SourceError as error:
            workspace.report(Message(error.message))
            facts = None
        source = culprit.unit.rpartition(": ")[2]
        hint = f"`builder lock {_definition(workspace, bisection)} --update {source}={good}` stays on the commit before"
        return FoundCulprit(replace(culprit, good=good, bad=bad), facts, url, "", hint)
    ends = points.wheel_ends(span, culprit.unit)
    if ends and (named := _of_wheels(workspace, bisection, span, culprit, ends)):
        return named
    old_text, new_text = spans.texts_of(span, culprit.unit)
    if culprit.good or culprit.bad:
        old_text, new_text = culprit.good or old_text, culprit.bad or new_text
    text = "".join(difflib.unified_diff(_lines(old_text), _lines(new_text), f"{span.old}", f"{span.new}", n=1))
    if culprit.axis == values.BASE:
        text += base_change.packages(workspace, span, conclusion)
    return FoundCulprit(culprit, text=text, hint=_hint(workspace, bisection, culprit, span))


def _of_wheels(
    workspace: Workspace, bisection: Bisection, span: NumberSpan, culprit: Culprit, ends: tuple[str, str]
) -> FoundCulprit | None:
    """A culprit among the wheels of vLLM's commits; None where it lies between two releases, and that is all."""
    good, bad = culprit.good or ends[0], culprit.bad or ends[1]
    if not any(map(remote_refs.is_commit, (good, bad))):
        return None
    try:
        whole = [wheel_points.whole(workspace, point) for point in (good, bad)]
        facts = wheel_points.facts(workspace, whole[1])
    except SourceError as error:
        workspace.report(Message(error.message))
        return None
    project = workspace.project
    last = whole[0] if commit_wheel.named(good) else good
    hint = wheel_points.to_stay_on(project, span, ends, _definition(workspace, bisection), last)
    resolved = replace(culprit, good=whole[0], bad=whole[1])
    return FoundCulprit(resolved, facts, wheel_points.repository(project), "", hint)


def _lines(text: str) -> list[str]:
    return [f"{line}\n" for line in text.splitlines()]


def _hint(workspace: Workspace, bisection: Bisection, culprit: Culprit, span: NumberSpan) -> str:
    definition = _definition(workspace, bisection)
    name = culprit.unit.rpartition(": ")[2]
    if ends := points.wheel_ends(span, culprit.unit):
        last = culprit.good or ends[0]
        if hint := wheel_points.to_stay_on(workspace.project, span, ends, definition, last):
            return hint
    if culprit.unit.startswith("package ") or ": package " in culprit.unit:
        package = name.removeprefix("package ")
        before = culprit.good or spans.texts_of(span, culprit.unit)[0].partition("==")[2].split(" ")[0].strip()
        return f"`{package}=={before}` under `python.packages` in dockerfiles/{definition}/image.yaml stays on that"
    if culprit.unit.startswith("mod "):
        mod = culprit.unit.removeprefix("mod ").partition(":")[0]
        return f"`git log -p mods/{mod}` shows who changed it"
    if culprit.unit.startswith("recipe"):
        return f"`git log -p {bisection.recipe}` shows who changed it"
    if culprit.axis == "template":
        return f"`git log -p dockerfiles/{definition} dockerfiles/_parts` shows who changed it"
    return f"`builder rollback {bisection.target}` goes back to {span.old}"


def _definition(workspace: Workspace, bisection: Bisection) -> str:
    record = reading.of(workspace.project).image(ImageName(bisection.repository, bisection.numbers[-1]))
    return record.definition if record and record.definition else "DEFINITION"
