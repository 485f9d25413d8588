"""The bisect command finds the change that broke a model: one commit, one package, one mod, the template or a flag.

The commands come first. Starting a bisection and the report at its end follow.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from builder.base import words
from builder.base.errors import (
    BuildFailedError,
    ConflictError,
    FileProblemsError,
    ImageStateError,
    NothingToDoError,
    SourceError,
    UnsafePathError,
    UsageError,
)
from builder.base.events import Message
from builder.base.values import dataclass, replace
from builder.building import work_folder
from builder.commands import bisect_trying, measuring, why
from builder.commands.bisect_trying import LookNow, RunningBisection, of_candidate, of_trial, subject_of
from builder.engine import images, installed, registry
from builder.lab.bisect import mixtures, points, search
from builder.lab.bisect.search import Bisection, Conclusion, Culprit, Judge, Trial, TryCandidate
from builder.lab.changes import differing
from builder.lab.measure import probes
from builder.lock import lock_file
from builder.lock.model import ImageName, Pairing, Repository
from builder.numbers import adopted
from builder.sources import mirror, vllm_versions, wheels

if TYPE_CHECKING:
    from builder.lab.bisect.mixtures import NumberSpan
    from builder.numbers.workspace import Workspace


T = TypeVar("T")


@dataclass(frozen=True)
class FoundCulprit(Culprit):
    """A culprit with its known facts: the upstream ``commit`` of ``bad``, the ``change`` as a unified diff, and
    ``now``, a hint about what to do."""

    commit: vllm_versions.CommitFacts | None = None
    change: str = ""
    now: str = ""


@dataclass(frozen=True)
class BisectReport:
    """The result of a bisection, finished or interrupted for the user. ``problem`` says why nothing was found. The
    culprit appeared between the two numbers ``between``. ``look`` is the candidate that the user must judge.
    ``machine`` lists changes of the machine since the good end worked; they may also be the cause."""

    bisection: Bisection
    conclusion: Conclusion | None = None
    culprits: tuple[FoundCulprit, ...] = ()
    problem: str = ""
    look: LookNow | None = None
    between: tuple[ImageName, ImageName] | None = None
    machine: tuple[str, ...] = ()


def bisect_images(
    workspace: Workspace,
    text: str,
    judge: Judge,
    *,
    good: int | None = None,
    bad: int | None = None,
    machine_differs: bool = False,
) -> BisectReport:
    """Finds the change between two numbers that broke ``text``: a model, a recipe or a definition. The default ends
    come from images.lock. An interrupted bisection continues. With ``machine_differs``, the bisection runs although the
    machine changed since the good end worked.

    Raises the errors of `_begun`, and ConflictError during another bisection.
    """
    project = workspace.project
    if judge.kind == "script" and not os.access(judge.name, os.X_OK):
        if not Path(judge.name).exists():
            raise UsageError(f"{judge.name} does not exist", hint="name the file of an executable script")
        hint = f"`chmod +x {judge.name}`; its first line must name a program, such as `#!/bin/sh`"
        raise UsageError(f"{judge.name} is not an executable program", hint=hint)
    work_folder.recover(workspace)
    with search.journal_of(project).hold():
        bisection = search.journal_of(project).read()
        if bisection is None:
            bisection = _begun(workspace, text, judge, good, bad)
            running, (first, last) = RunningBisection(workspace, bisection), bisection.ends
            if not machine_differs:
                why.require_same_machine(first, _machine_since(running), text)
            axes = ", ".join(axis.name for axis in running.spans(first.number, last.number).axes)
            workspace.report(Message(f"bisecting from {first} to {last}; recorded differences: {axes or 'none'}"))
            search.write_bisection(project, bisection)
            return _go_on(running)
        first, last = bisection.ends
        other_ends = (good or first.number, bad or last.number) != (first.number, last.number)
        if other_ends or (bisection.target, bisection.judge) != (text, judge.recorded):
            again = f"`builder bisect {shlex.quote(bisection.target)}` with the same options continues it"
            message = f"a bisection of {bisection.target} from {first} to {last} is not finished"
            raise ConflictError(message, hint=f"{again}; `builder bisect stop` ends it")
        workspace.report(Message(f"continuing the bisection that began at {bisection.started}"))
        running = RunningBisection(workspace, replace(bisection, judge=judge))
        running.stop_candidates(restore=False)
        return _go_on(running)


def _machine_since(running: RunningBisection) -> tuple[str, ...]:
    """The changes of the machine since the good end worked. A proof uses no GPU, and a definition has no server."""
    bisection, recipe = running.bisection, running.recipe
    if recipe is None or recipe.model is None or bisection.judge.kind == "prove":
        return ()
    return why.machine_since(running.workspace, bisection.ends[0], recipe.model)


def _go_on(running: RunningBisection) -> BisectReport:
    """Runs all remaining steps. Afterwards the model is served as before, also after an error, unless the user must
    look at a candidate. The caller holds the journal."""
    try:
        result = running.answer_all()
    except BaseException:
        running.stop_candidates(restore=True)
        raise
    if isinstance(result, LookNow):
        return BisectReport(running.bisection, look=result)
    return _ended(running, result)


def mark_bisection(workspace: Workspace, word: Literal["good", "bad", "skip"], note: str = "") -> BisectReport:
    """Records the user's verdict on the candidate and continues. Raises NothingToDoError if no candidate waits."""
    project = workspace.project
    with search.journal_of(project).hold():
        bisection = search.journal_of(project).read()
        if bisection is None or bisection.waiting is None or bisection.judge.kind != "user":
            message = "no candidate is waiting for a verdict"
            hint = "`builder bisect MODEL` begins a bisection, `builder bisect status` shows its progress"
            raise NothingToDoError(message, hint=hint)
        skipped = (note or "skipped") if word == "skip" else ""
        trial = Trial(bisection.waiting, int(word == "good"), int(word == "bad"), skipped, note=note)
        bisection = replace(bisection, done=(*bisection.done, trial), waiting=None)
        running = RunningBisection(workspace, bisection)
        search.write_bisection(project, bisection)
        running.stop_candidates(restore=False)
        return _go_on(running)


@dataclass(frozen=True)
class BisectState:
    """The progress of a bisection: descriptions of the trials, the ``next`` candidate, and about how many steps and
    seconds are left (None if no trial was timed)."""

    bisection: Bisection
    tried: tuple[str, ...]
    next: str
    steps_left: int
    seconds_left: float | None


def bisection_status(workspace: Workspace) -> BisectState:
    """The progress of the bisection. Raises NothingToDoError if none is under way."""
    bisection = search.journal_of(workspace.project).read()
    if bisection is None:
        raise NothingToDoError("no bisection is under way", hint="`builder bisect MODEL` begins one")
    running, name = RunningBisection(workspace, bisection), bisection.repository
    step, left = running.next_step(bisection), running.steps_ahead()
    took = [trial.seconds for trial in bisection.done if trial.seconds]
    return BisectState(
        bisection,
        tuple(f"{of_candidate(trial.candidate, name)}:{of_trial(trial)[1:]}" for trial in bisection.done),
        of_candidate(step.candidate, name) if isinstance(step, TryCandidate) else "",
        left,
        left * sum(took) / len(took) if took else None,
    )


def stop_bisection(workspace: Workspace) -> int:
    """Serves the model as before, removes the candidates and the journal, and returns the number of candidates. If the
    bisection's name no longer leads to its server, the server is reported and left unchanged. Raises NothingToDoError
    if no bisection is under way."""
    project = workspace.project
    with search.journal_of(project).hold():
        bisection = search.journal_of(project).read()
        if bisection is None:
            raise NothingToDoError("no bisection is under way")
        try:
            RunningBisection(workspace, bisection).stop_candidates(restore=True)
        except (ConflictError, FileProblemsError, UnsafePathError, UsageError) as error:
            workspace.report(Message(f"the server of {bisection.target} was left unchanged: {error.message}"))
        count = bisect_trying.remove_all(workspace)
        search.journal_of(project).remove()
        return count


# Starting a bisection: its two ends, the existing numbers between them, and the recipe.


def _begun(workspace: Workspace, text: str, judge: Judge, good: int | None, bad: int | None) -> Bisection:
    """Raises UsageError if ``text`` names nothing, ImageStateError if an end is not in the engine, NothingToDoError if
    no numbered image exists, or none is current."""
    project, lock = workspace.project, lock_file.read_project_lock(workspace.project)
    recipe, name = subject_of(project, lock, text)
    repository = lock.images.get(name)
    if repository is None or not repository.numbers:
        message = f"{name} has no numbered image"
        hint = f"a bisection compares two numbers; `builder build {shlex.quote(text)}` makes a number"
        raise NothingToDoError(message, hint=hint)
    paired = lock.models.get((recipe.model if recipe else None) or "")
    every = (paired.pairing, *paired.previous) if paired else ()
    pairings = tuple(pairing for pairing in every if pairing.image.repository == name)
    first, last = _ends(name, repository, pairings, good, bad)
    if judge.kind == "probe":
        probes.require(project, judge.name)
    if recipe is None and judge.kind in {"probe", "prove", "same"}:
        hint = "name a recipe or a model, or test the image itself with `--run SCRIPT`"
        raise UsageError("a definition does not say how a model is served", hint=hint)
    numbers = []
    for number, record in sorted(repository.numbers.items()):
        if min(first, last) <= number <= max(first, last):
            try:
                adopted.require_present(workspace.engine, ImageName(name, number), record)
                numbers.append(number)
            except ImageStateError:
                if number in {first, last}:
                    raise
    return Bisection(
        target=text,
        repository=name,
        numbers=tuple(numbers if first < last else reversed(numbers)),
        judge=judge,
        started=words.now(),
        served=measuring.server_of(workspace, recipe) is not None,
    )


def _ends(
    name: str, repository: Repository, pairings: tuple[Pairing, ...], good: int | None, bad: int | None
) -> tuple[int, int]:
    """The good end and the bad end."""
    last = bad or (pairings[0].image.number if pairings else repository.current)
    for number in filter(None, (good, last)):
        if number not in repository.numbers:
            raise UsageError(f"{name} has no number {number}", hint="`builder list` shows the numbered images")
    if last is None:
        raise NothingToDoError(f"no number of {name} is current", hint="name the number that fails: `--bad N`")
    first = good or _last_good(repository, pairings, last)
    if first is None:
        hint = f"name a number that works: `--good N`; `builder mark {name}:N good` records it"
        raise UsageError(f"no number before {name}:{last} is known to be good", hint=hint)
    if first == last:
        raise UsageError(f"{name}:{last} cannot be both good and bad", hint="name different numbers: --good N, --bad N")
    return first, last


def _last_good(repository: Repository, pairings: tuple[Pairing, ...], last: int) -> int | None:
    """The last number marked good, with the model or alone; otherwise the last one paired or current before."""
    earlier = [number for number in repository.numbers if number != last]
    paired = {pairing.image.number: pairing.status for pairing in pairings}
    marked = [number for number in earlier if paired.get(number, repository.numbers[number].status) == "good"]
    if below := [number for number in marked if number < last]:
        return max(below)
    order = (*(pairing.image.number for pairing in pairings), *repository.previous)
    usable = [number for number in order if number in earlier and repository.numbers[number].status != "bad"]
    return next(iter(usable), max(marked, default=None))


# The end of a bisection and its report.

_OUTSIDE = "look for the cause outside the images: in the driver, memory, options or weights"
# Why nothing was found, and what to do.
_ENDINGS = {
    "bad end passes": (
        "the bad number passes",
        f"use a --run script or a --probe that shows the fault; or {_OUTSIDE}",
    ),
    "good end fails": ("the good number fails as well", f"name another number that passed: `--good N`; or {_OUTSIDE}"),
    "alike": (
        "both numbers fail about equally often: more trials cannot separate them",
        "use a test that fails more clearly: a --run script can try several times and count",
    ),
    "end untried": (
        "the good or the bad number could not be tried",
        "correct the fault and run the same command again; or name other numbers with --good N and --bad N",
    ),
    "nothing differs": ("the records of the two numbers do not differ", _OUTSIDE),
}


def _ended(running: RunningBisection, conclusion: Conclusion) -> BisectReport:
    """Ends a bisection: serves the model as before, and removes the candidates and the journal."""
    workspace, bisection = running.workspace, running.bisection
    report = BisectReport(bisection, conclusion, machine=_machine_since(running))
    if conclusion.ending == "found":
        good, bad = conclusion.good, conclusion.bad
        made = bad if bad.number is None else good  # one is a mixture of the two numbers, or both are the numbers
        span = running.spans(made.old, made.new if made.number is None else bad.old)
        culprits = (_found_culprit(running, span, conclusion, culprit) for culprit in conclusion.culprits)
        report = replace(report, culprits=tuple(culprits), between=(span.old, span.new))
    else:
        report = replace(report, problem=_problem(bisection, conclusion.ending))
    running.stop_candidates(restore=True)
    if count := bisect_trying.remove_all(workspace):
        workspace.report(Message(f"removed {words.counted(count, 'candidate')}; the build cache was kept"))
    search.journal_of(workspace.project).remove()
    return report


def _problem(bisection: Bisection, ending: str) -> str:
    reason, advice = _ENDINGS[ending]
    seen = []
    for name in bisection.ends:
        if own := [trial for trial in bisection.done if trial.candidate.number == name.number]:
            passed, failed = sum(trial.passed for trial in own), sum(trial.failed for trial in own)
            notes = [trial.skipped or trial.note for trial in own if trial.skipped or trial.note]
            last = f": {notes[-1]}" if notes else ""
            seen.append(f"{name}: passed {passed}, failed {failed}{last}")
    return "\n".join([reason, *seen, f"what to do: {advice}"])


def _found_culprit(
    running: RunningBisection, span: NumberSpan, conclusion: Conclusion, culprit: Culprit
) -> FoundCulprit:
    """The known facts about a culprit between the two numbers of ``span``. If upstream does not answer, the commit is
    omitted and a message is reported."""
    workspace, bisection, unit = running.workspace, running.bisection, culprit.unit
    definition = points.definition(workspace.project, bisection.ends[1]) or "DEFINITION"
    result = FoundCulprit(culprit.axis, unit, culprit.good, culprit.bad, culprit.between)
    if tree := span.tree(unit):
        good, bad = culprit.good or tree.old[1], culprit.bad or tree.new[1]
        mirrors, url = workspace.project.mirrors, tree.new[0]
        now = f"`builder lock {definition} --update {unit.rpartition(': ')[2]}={good}` keeps the commit before"
        commit = _answered(workspace, lambda: vllm_versions.commit_facts(mirror.locate(mirrors, url), bad))
        return replace(result, good=good, bad=bad, commit=commit, now=now)
    if package := span.package(unit):
        old, new = span.versions(package)
        good, bad = culprit.good or old, culprit.bad or new
        now = f"`{package}=={good}` under `python.packages` in dockerfiles/{definition}/image.yaml keeps that version"
        if package != points.PACKAGE:
            return replace(result, good=good, bad=bad, now=now)
        stay, commit = good, None
        if mirror.is_commit(good) or mirror.is_commit(bad):
            before, commit = (
                _answered(workspace, partial(points.commit_facts, workspace, point)) for point in (good, bad)
            )
            if before and commit:
                stay = before.commit if wheels.named(good) else good
                good, bad = before.commit, commit.commit
        now = points.to_stay_on(workspace.project, span, definition, stay)
        return replace(result, good=good, bad=bad, commit=commit, now=now)
    result = replace(result, change=mixtures.change_of(span, unit))
    if culprit.axis == mixtures.BASE:
        return _found_base(running, span, conclusion, result, definition)
    path = {
        "mod": f"mods/{culprit.axis.removeprefix('mod ')}",
        "recipe": running.recipe.file if running.recipe else "",
        mixtures.TEMPLATE: f"dockerfiles/{definition} dockerfiles/_parts",
    }.get(culprit.axis.partition(" ")[0])
    undone = f"`builder rollback {shlex.quote(bisection.target)}` goes back to {span.old}"
    return replace(result, now=f"`git log -p {path}` shows who changed it" if path else undone)


def _found_base(
    running: RunningBisection, span: NumberSpan, conclusion: Conclusion, result: FoundCulprit, definition: str
) -> FoundCulprit:
    """The known facts about two base images, or about a commit of vLLM if the commits of that day were tried."""
    workspace, good, bad, note = running.workspace, result.good, result.bad, ""
    tried = {good, bad, *result.between}
    inside = (row for row in running.bisection.rows if row.points and points.in_base(row.points[0])[1])
    if row := next((each for each in inside if tried & {*each.points}), None):
        good = points.in_base(row.points[0])[0]
        bad = row.before or images.split_tag(span.bases[1].partition("@")[0])[1]
        result = replace(result, between=tuple(points.in_base(point)[1] for point in result.between))
        if {result.good, result.bad} <= {*row.points}:
            facts = _answered(workspace, partial(points.commit_facts, workspace, result.bad))
            first, last = (points.in_base(point)[1] for point in (result.good, result.bad))
            result = replace(result, good=first, bad=last, commit=facts)
        else:
            passes = f"; a candidate with the vLLM of {bad} passes, so the cause is something else in {bad}"
            unknown = "; the published wheels of vLLM do not show which commit of that day is the cause"
            note = passes if result.good in row.points else unknown
            result = replace(result, good=good, bad=bad)
    now = f"`builder rollback {shlex.quote(running.bisection.target)}` goes back to {span.old}"
    if good:
        now = f"`builder lock {definition} --update base={good}` keeps the image before {bad}{note}"
    change = result.change + _changes_of_bases(workspace, span, conclusion, good, bad)
    return replace(result, change=change, now=now)


def _changes_of_bases(workspace: Workspace, span: NumberSpan, conclusion: Conclusion, good: str, bad: str) -> str:
    """Lines of a diff between the labels of two dated base images, and between the distribution's packages of the two
    candidates. Data that can no longer be read is omitted."""
    name, cache, platform = images.repository(span.bases[0]), workspace.project.engine_cache, span.platform
    lines = ""
    if good and bad:
        ask = partial(registry.published, workspace.engine, name, (good, bad), platform, cache)
        labels = {image.tag: image.labels for image in _answered(workspace, ask) or ()}
        lines = _lines_of_diff(labels.get(good, {}), labels.get(bad, {}), "")
    workspace.report(Message("comparing the packages of the two images"))
    try:
        with work_folder.create(workspace, "bisect", {}) as work:
            tags = [points.image_of(workspace, span, tried)[0] for tried in (conclusion.good, conclusion.bad)]
            before, after = (installed.read_system_packages(workspace.engine, tag, work.labels) for tag in tags)
    except (BuildFailedError, ImageStateError, SourceError) as error:
        workspace.report(Message(error.message))
        return lines
    return lines + _lines_of_diff(before, after, "package ")


def _lines_of_diff(before: Mapping[str, str], after: Mapping[str, str], what: str) -> str:
    return "".join(
        f"{sign}{what}{key.replace('_', ' ')} {value}\n"
        for key, *sides in differing(before, after)
        for sign, value in zip("-+", sides, strict=True)
        if value is not None
    )


def _answered(workspace: Workspace, ask: Callable[[], T]) -> T | None:
    """The answer of another machine. If it does not answer, the error is reported, and the result is None."""
    try:
        return ask()
    except SourceError as error:
        workspace.report(Message(error.message))
        return None
