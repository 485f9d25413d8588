"""The bisect command finds the change that broke a model: one commit, one package, one mod, the template or a flag.

The commands come first, then the bisection that a request means, what it takes, and the report at its end.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
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
from builder.base.files import put_folder_in_place
from builder.building import bake, work_folder
from builder.commands import bisect_trying, measuring, why
from builder.commands.bisect_trying import LookNow, RunningBisection, of_candidate, of_trial
from builder.definitions import build_target, image
from builder.definitions.recipe import is_in_recipes, recorded
from builder.engine import images, installed, registry
from builder.engine.machine import free_disk, read_build_machine
from builder.lab.bisect import mixtures, points, search, session
from builder.lab.bisect.search import Culprit, Trial, TryCandidate
from builder.lab.bisect.session import Bisection, BisectOutlook, Judge
from builder.lab.measure import probes
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.plan import making
from builder.serving import selection
from builder.sources import foreign_files, mirror, vllm_versions, wheels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.base.project import Project
    from builder.definitions.recipe import Recipe
    from builder.lab.bisect.points import NumberSpan
    from builder.lab.bisect.search import Conclusion
    from builder.lock.model import Lock, Pairing, Repository
    from builder.numbers.workspace import Workspace
    from builder.plan.plan_model import StagedFile
    from builder.sources.vllm_versions import CommitFacts


T = TypeVar("T")


@dataclass(frozen=True)
class BisectRequest:
    """A bisection as typed: ``text`` is a model, a recipe or a definition; the ends are numbers, None where the lock
    gives them. With ``machine_differs`` it goes on although the machine is not the one on which the good end worked."""

    text: str
    judge: Judge
    good: int | None = None
    bad: int | None = None
    find_fix: bool = False
    machine_differs: bool = False


@dataclass(frozen=True)
class FoundCulprit(Culprit):
    """A culprit with what is known about it. ``title``, ``author``, ``date`` and ``files`` are of the upstream commit
    ``bad`` and empty where there is none; ``change`` is a unified diff, ``now`` the hint of what can be done."""

    title: str = ""
    author: str = ""
    date: str = ""
    files: tuple[str, ...] = ()
    change: str = ""
    now: str = ""


@dataclass(frozen=True)
class BisectReport:
    """The end of a bisection, or of its steps for now. ``problem`` says why nothing was found; ``folder`` holds the
    build directories of the sides that are no number. ``between`` are the two neighbouring numbers between which the
    culprit came. ``look`` is what the user has to look at; ``machine`` is what is different in the machine since the
    good end worked, which may be the cause as well."""

    bisection: Bisection
    conclusion: Conclusion | None = None
    culprits: tuple[FoundCulprit, ...] = ()
    problem: str = ""
    folder: str = ""
    look: LookNow | None = None
    between: tuple[int, int] | None = None
    machine: tuple[str, ...] = ()


def bisect_images(workspace: Workspace, request: BisectRequest) -> BisectReport:
    """Looks for the change between two numbers with which ``request.text`` went from good to bad. One that was
    interrupted goes on where it was.

    Raises what `preview_bisect` does, and ConflictError where another bisection is under way.
    """
    project, judge = workspace.project, request.judge
    if judge.kind == "script" and not Path(judge.name).is_file():
        raise UsageError(f"there is no script {judge.name}", hint="--run takes a program: 0 is good, 125 skip, 1 bad")
    if judge.kind == "script" and not os.access(judge.name, os.X_OK):
        hint = f"`chmod +x {judge.name}`, and begin it with a line such as `#!/bin/sh`"
        raise UsageError(f"{judge.name} cannot be run as a program", hint=hint)
    work_folder.recover(workspace)
    with session.journal_of(project).hold():
        bisection = session.journal_of(project).read()
        if bisection is None:
            bisection = preview_bisect(workspace, request)
            if not request.machine_differs:
                _require_same_machine(workspace, bisection)
            for line in bisection.plan:
                workspace.report(Message(line))
            session.write_bisection(project, bisection)
            return _go_on(workspace, bisection)
        typed = (request.text, judge.recorded, request.find_fix)
        if (bisection.target, bisection.judge, bisection.find_fix) != typed:
            again = f"`builder bisect {shlex.quote(bisection.target)}` with the same options goes on with it"
            raise ConflictError(
                f"a bisection of {bisection.target} was interrupted", hint=f"{again}, `builder bisect stop` ends it"
            )
        workspace.report(Message(f"going on with the bisection of {bisection.started}"))
        bisection = _again(workspace, replace(bisection, judge=judge))
        bisect_trying.stop_candidates(workspace, bisection, restore=False)
        return _go_on(workspace, bisection)


def preview_bisect(workspace: Workspace, request: BisectRequest) -> Bisection:
    """The bisection that a request means, with its outlook; nothing is tried. Raises UsageError where it names nothing,
    ImageStateError where an end is not in the engine, NothingToDoError where there is no number to begin from."""
    bisection = _of_request(workspace, request)
    return replace(bisection, outlook=_outlook(RunningBisection(workspace, bisection)))


def _require_same_machine(workspace: Workspace, bisection: Bisection) -> None:
    """Raises ConflictError where the machine is not the one on which the good end worked: an image would be blamed for
    what the machine does. A proof takes no GPU, and what gets the image alone has no server."""
    if changes := _machine_since(workspace, bisection):
        good = f"{bisection.repository}:{bisection.passing}"
        raise ConflictError(
            "\n".join([f"the machine is not the one on which {good} worked, so that no image can be blamed", *changes]),
            hint=f"`builder why {shlex.quote(bisection.target)}` says how to go back; if {good} still works here,"
            " `builder restart` records it; `--machine-differs` goes on all the same",
        )


def _machine_since(workspace: Workspace, bisection: Bisection) -> tuple[str, ...]:
    """The differences in the machine since the good end worked."""
    if not bisection.recipe or bisection.judge.kind == "prove" or not bisection.judge.serves:
        return ()
    model = bisect_trying.recipe_of(workspace, bisection).model
    return why.machine_since(workspace, ImageName(bisection.repository, bisection.passing), model) if model else ()


def _go_on(workspace: Workspace, bisection: Bisection) -> BisectReport:
    """Takes all steps that are left; whatever ends them, the model is served as before, unless the user has to look.
    The caller holds the journal."""
    try:
        running, result = bisect_trying.answer_all(workspace, bisection)
    except BaseException:
        bisect_trying.stop_candidates(workspace, bisection, restore=True)
        raise
    if isinstance(result, LookNow):
        return BisectReport(running.bisection, look=result)
    return _ended(running, result)


def mark_bisection(workspace: Workspace, word: Literal["good", "bad", "skip"], note: str = "") -> BisectReport:
    """Notes the user's verdict on the candidate and goes on. Raises NothingToDoError where no candidate waits."""
    project = workspace.project
    with session.journal_of(project).hold():
        bisection = session.journal_of(project).read()
        if bisection is None or bisection.waiting is None or bisection.judge.kind != "user":
            raise NothingToDoError(
                "no candidate is waiting for a verdict", hint="`builder bisect MODEL` begins, `bisect status` tells"
            )
        skipped = (note or "skipped") if word == "skip" else ""
        trial = Trial(bisection.waiting, int(word == "good"), int(word == "bad"), skipped, note=note)
        bisection = replace(_again(workspace, bisection), done=(*bisection.done, trial), waiting=None)
        session.write_bisection(project, bisection)
        bisect_trying.stop_candidates(workspace, bisection, restore=False)
        return _go_on(workspace, bisection)


@dataclass(frozen=True)
class BisectState:
    """The state of a bisection: what was tried, in words; the candidate that is ``next``, and about how many steps and
    seconds are left, None where no trial has told how long one takes."""

    bisection: Bisection
    tried: tuple[str, ...]
    next: str
    steps_left: int
    seconds_left: float | None


def bisection_status(workspace: Workspace) -> BisectState:
    """Tells how far a bisection is. Raises NothingToDoError where there is none."""
    bisection = session.journal_of(workspace.project).read()
    if bisection is None:
        raise NothingToDoError("no bisection is under way", hint="`builder bisect MODEL` begins one")
    bisection = _again(workspace, bisection)
    running, name = RunningBisection(workspace, bisection), bisection.repository
    step, left = running.next_step(), len(running.candidates_ahead())
    took = [trial.seconds for trial in bisection.done if trial.seconds]
    return BisectState(
        bisection,
        tuple(f"{of_candidate(trial.candidate, name)}:{of_trial(trial)[1:]}" for trial in bisection.done),
        of_candidate(step.candidate, name) if isinstance(step, TryCandidate) else "",
        left,
        left * sum(took) / len(took) if took else None,
    )


def stop_bisection(workspace: Workspace) -> int:
    """Serves the model as before, removes the candidates and the journal; returns how many candidates there were. A
    server that is no longer known by the name of the bisection is left, and reported.
    Raises NothingToDoError where no bisection is under way."""
    project = workspace.project
    with session.journal_of(project).hold():
        bisection = session.journal_of(project).read()
        if bisection is None:
            raise NothingToDoError("no bisection is under way")
        try:
            bisect_trying.stop_candidates(workspace, _again(workspace, bisection), restore=True)
        except (ConflictError, FileProblemsError, UnsafePathError, UsageError) as error:
            workspace.report(Message(f"the server of {bisection.target} was left as it is: {error.message}"))
        count = bisect_trying.remove_all(workspace)
        session.journal_of(project).remove()
        return count


# The bisection that a request means: the two ends, the numbers between them that exist, and the recipe.


def _of_request(workspace: Workspace, request: BisectRequest) -> Bisection:
    project, lock = workspace.project, lock_file.read_project_lock(workspace.project)
    recipe, repository_name = _subject(project, lock, request.text)
    repository = lock.images.get(repository_name)
    if repository is None or not repository.numbers:
        raise NothingToDoError(
            f"{repository_name} has no numbered image", hint="`builder build` makes one: a bisection compares two"
        )
    paired = lock.models.get((recipe.model if recipe else None) or "")
    every = (paired.pairing, *paired.previous) if paired else ()
    pairings = tuple(pairing for pairing in every if pairing.image.repository == repository_name)
    first, last = _ends(repository_name, repository, pairings, request)
    judge = request.judge
    if judge.kind == "probe":
        probes.require(project, judge.name)
    if recipe is None and (judge.kind in {"probe", "prove", "same"} or (judge.kind == "script" and judge.serves)):
        hint = "name a recipe or a model, or give `--run SCRIPT --no-serve`, which gets the image alone"
        raise UsageError("a definition does not say how a model is served", hint=hint)
    numbers = []
    for number, record in sorted(repository.numbers.items()):
        if min(first, last) <= number <= max(first, last):
            name = f"{repository_name}:{number}"
            details = images.inspect_image(workspace.engine, name)
            if details and images.fingerprint(details) == record.fingerprint:
                numbers.append(number)
            elif number in {first, last}:
                raise ImageStateError(
                    f"{name} is not in this engine as images.lock records it",
                    hint=f"`builder rebuild {name}` makes it again, `builder pull {name}` fetches it",
                )
    return Bisection(
        target=request.text,
        repository=repository_name,
        platform=repository.numbers[first].platform,
        numbers=tuple(numbers if first < last else reversed(numbers)),
        judge=judge,
        started=words.now(),
        find_fix=request.find_fix,
        recipe=recipe.file if recipe else "",
        recipe_before=_recipe_before(project, recipe, repository, (first, last)),
        served=measuring.server_of(workspace, recipe) is not None,
    )


def _again(workspace: Workspace, bisection: Bisection) -> Bisection:
    """A bisection of the journal with what the journal does not hold: its recipe and platform, by the name that was
    typed. Raises ConflictError where the name means other images now."""
    project, lock = workspace.project, lock_file.read_project_lock(workspace.project)
    recipe, repository_name = _subject(project, lock, bisection.target)
    repository = lock.images.get(repository_name)
    is_same = repository_name == bisection.repository
    if repository is None or not is_same or not {*bisection.numbers} <= repository.numbers.keys():
        raise ConflictError(
            f"the bisection of {bisection.target} looks at images that {bisection.target} does not name any more",
            hint="`builder bisect stop` ends it",
        )
    ends = (bisection.numbers[0], bisection.numbers[-1])
    before = "" if bisection.present_recipe else _recipe_before(project, recipe, repository, ends)
    platform = repository.numbers[ends[0]].platform
    return replace(bisection, platform=platform, recipe=recipe.file if recipe else "", recipe_before=before)


def _subject(project: Project, lock: Lock, text: str) -> tuple[Recipe | None, str]:
    """The recipe that serves ``text``, None for a definition, and its repository."""
    if text in lock.models:
        paired = lock.models[text].pairing
        is_recorded = recorded(project, paired.recipe)
        recipe = selection.select_image(project, lock, text).recipe if is_recorded else None
        return recipe, paired.image.repository
    named = build_target.find_target(project, text, lock.models)
    if named.recipe is None:
        return None, image.repository_of(project, named.definition or "")
    if not is_in_recipes(project, project.root / named.recipe.file):
        raise UsageError(
            f"{named.recipe.file} is not in recipes/: a bisection finds its recipe again by its name",
            hint="copy the recipe to recipes/, and name it by its name",
        )
    model = lock.models.get(named.recipe.model or "")
    return named.recipe, model.pairing.image.repository if model else named.recipe.repository


def _ends(name: str, repository: Repository, pairings: tuple[Pairing, ...], request: BisectRequest) -> tuple[int, int]:
    """The number to begin from and the one to end at. With ``find_fix`` the first is the one that is bad."""
    present = pairings[0].image.number if pairings else repository.current
    first: int | None
    last: int | None
    if request.find_fix:
        first, last = request.bad or present, request.good or max(repository.numbers)
    else:
        first, last = request.good, request.bad or present
    for number in filter(None, (first, last)):
        if number not in repository.numbers:
            raise UsageError(f"{name} has no number {number}", hint="`builder list` shows the numbered images")
    if last is None:
        raise NothingToDoError(f"no number of {name} is current", hint="--bad N says which one fails")
    if not request.find_fix and first is None:
        first = _last_good(repository, pairings, last)
        if first is None:
            hint = f"--good N says which one; `builder mark {name}:N good` keeps that"
            raise UsageError(f"no number before {name}:{last} is known to be good", hint=hint)
    if first is None or first == last:
        raise UsageError(f"{name}:{last} cannot be both ends", hint="--good N and --bad N say between which to look")
    return first, last


def _last_good(repository: Repository, pairings: tuple[Pairing, ...], last: int) -> int | None:
    """The number that was good last: marked so, with the model or by itself; else what was paired or current before."""
    earlier = [number for number in repository.numbers if number != last]
    paired = {pairing.image.number: pairing.status for pairing in pairings}
    marked = [number for number in earlier if paired.get(number, repository.numbers[number].status) == "good"]
    if below := [number for number in marked if number < last]:
        return max(below)
    order = (*(pairing.image.number for pairing in pairings), *repository.previous)
    usable = [number for number in order if number in earlier and repository.numbers[number].status != "bad"]
    return next(iter(usable), max(marked, default=None))


def _recipe_before(project: Project, recipe: Recipe | None, repository: Repository, ends: tuple[int, int]) -> str:
    """The recipe as the project's git had it before: when the image that fails was built, or where it was edited before
    that build, when the first number was. Empty where it is the same now."""
    if recipe is None:
        return ""
    for number in (max(ends), ends[0]):
        commit = foreign_files.last_change(project.root, recipe.file, repository.numbers[number].built)
        content = foreign_files.read_file(project.root, commit, recipe.file) if commit else None
        text = (content or b"").decode(errors="replace")
        if text not in {"", recipe.text}:
            return text
    return ""


# What a bisection takes: the steps, the time to build their images, and the disk.


def _outlook(running: RunningBisection) -> BisectOutlook:
    """The outlook of a bisection: to the axis as the search goes if every verdict is the less favourable one, and then
    on the axis that takes the longest."""
    workspace, numbers = running.workspace, running.bisection.numbers
    spans = [running.spans(*pair) for pair in pairwise(numbers)]
    axes = [cost for span in spans for cost in _axes(workspace, span)]
    ahead = [tried for tried in running.candidates_ahead() if tried.number not in {numbers[0], numbers[-1]}]
    to_axis = [tried for tried in ahead if not search.is_inside_axis(running.spans(tried.old, tried.new).axes, tried)]
    times = []
    for tried in to_axis:
        if tried.number is None:
            span = running.spans(tried.old, tried.new)
            changed = [axis.name for axis in span.axes if {*axis.units} & {*tried.taken}]
            times.append(max(_seconds(workspace, span, axis) for axis in changed))
    on_axis = max((steps for _, steps, _ in axes), default=0)
    seconds = sum(times) + max((steps * seconds for _, steps, seconds in axes if steps), default=0.0)
    machine = read_build_machine(workspace.engine)
    own = max((_own_bytes(workspace, span) for span in spans), default=0)
    return BisectOutlook(
        steps=len(to_axis) + on_axis,
        steps_on_axis=on_axis,
        axes=tuple(dict.fromkeys(text for text, _, _ in axes)),
        seconds=seconds if math.isfinite(seconds) else None,
        disk=(len(times) + on_axis) * own,
        free=free_disk(machine.data_root) if machine else None,
    )


def _axes(workspace: Workspace, span: NumberSpan) -> Iterator[tuple[str, int, float]]:
    """Yields each axis in words, the steps to the place on it, and the seconds that the image of a step takes."""
    for axis in span.axes:
        rows = (commits for unit in axis.units if (commits := points.finest(workspace, span, unit)) is not None)
        count, seconds = len(axis.units), _seconds(workspace, span, axis.name)
        if (commits := next(rows, None)) is not None:
            is_days = axis.name == mixtures.BASE and not any(points.in_base(point)[1] for point in commits)
            kind = "image" if is_days else "commit"
            text = f"{axis.name} ({words.counted(len(commits), kind)} between)"
            yield text, len(commits).bit_length(), seconds
        else:
            yield f"{axis.name} ({count})" if count > 1 else axis.name, (count - 1).bit_length(), seconds


def _seconds(workspace: Workspace, span: NumberSpan, axis: str) -> float:
    """The seconds to build an image for a change on an axis, at most: as long as its steps took before, and for mods
    and packages those that compile nothing. Infinite where one that compiles was never built here."""
    if axis == points.RECIPE:
        return 0.0
    titles = span.builds.step_titles
    if axis == mixtures.PACKAGES or axis.startswith("mod "):
        titles = [title for title in titles if not bake.compiles(title)]
    expected = bake.expected_steps(bake.load_step_times(workspace.project), titles)
    return math.inf if expected is None else expected


def _own_bytes(workspace: Workspace, span: NumberSpan) -> int:
    """The bytes of the layers that the newer number does not share with the older one: about what a candidate takes."""
    old, new = (images.inspect_image(workspace.engine, str(name)) for name in (span.old, span.new))
    if old is None or new is None:
        return 0
    sizes = images.layer_sizes(workspace.engine, (new,))
    shared = set(images.layers(old))
    return sum(sizes.get(layer, 0) for layer in images.layers(new) if layer not in shared)


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
        "fix what it says, and give the same command again; or name other ends by --good N and --bad N",
    ),
    "nothing differs": ("nothing that is recorded differs between the two numbers", _OUTSIDE),
}


def _ended(running: RunningBisection, conclusion: Conclusion) -> BisectReport:
    """Ends a bisection: writes what was found, serves as before, removes the candidates, and forgets the journal."""
    workspace, bisection = running.workspace, running.bisection
    if conclusion.ending == "found":
        report = _found(running, conclusion)
    else:
        report = BisectReport(bisection, conclusion, problem=_problem(bisection, conclusion.ending))
    report = replace(report, machine=_machine_since(workspace, bisection))
    bisect_trying.stop_candidates(workspace, bisection, restore=True)
    if count := bisect_trying.remove_all(workspace):
        workspace.report(Message(f"removed {words.counted(count, 'candidate')}; what was cached of them stays"))
    session.journal_of(workspace.project).remove()
    return report


def _problem(bisection: Bisection, ending: str) -> str:
    # The search calls the two numbers by their places: what was fixed fails at the first.
    if ending in {"good end fails", "bad end passes"}:
        ending = "fails" if (ending == "good end fails") != bisection.find_fix else "passes"
    reason, advice = _ENDINGS[ending]
    seen = []
    for number in (bisection.numbers[0], bisection.numbers[-1]):
        if own := bisection.of_number(number):
            passed, failed = sum(trial.passed for trial in own), sum(trial.failed for trial in own)
            notes = [trial.skipped or trial.note for trial in own if trial.skipped or trial.note]
            last = f": {notes[-1]}" if notes else ""
            seen.append(f"{bisection.repository}:{number}: passed {passed}, failed {failed}{last}")
    return "\n".join([reason, *seen, f"what to do: {advice}"])


def _found(running: RunningBisection, conclusion: Conclusion) -> BisectReport:
    workspace, bisection = running.workspace, running.bisection
    sides = {"good": conclusion.good, "bad": conclusion.bad}
    made = next((tried for tried in (conclusion.bad, conclusion.good) if tried.number is None), None)
    between = (made.old, made.new) if made else (conclusion.good.old, conclusion.bad.old)
    span = running.spans(*between)
    culprits = tuple(_culprit_facts(running, span, conclusion, culprit) for culprit in conclusion.culprits)
    files: dict[str, StagedFile] = {}
    for side, tried in sides.items():
        if build := points.image_of(workspace, span, tried)[1]:
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


def _culprit_facts(
    running: RunningBisection, span: NumberSpan, conclusion: Conclusion, culprit: Culprit
) -> FoundCulprit:
    """The facts of a culprit that lies between the two numbers of ``span``. Where upstream does not answer, they are
    left out, and a message says so."""
    workspace, bisection = running.workspace, running.bisection
    unit, good, bad = culprit.unit, culprit.good, culprit.bad
    last = ImageName(bisection.repository, bisection.numbers[-1])
    definition = points.definition(workspace.project, last) or "DEFINITION"
    facts: CommitFacts | None = None
    change = now = ""
    if tree := span.tree(unit):
        good, bad = good or tree.old[1], bad or tree.new[1]
        facts = _answered(workspace, partial(vllm_versions.commit_facts, workspace.project.mirrors, tree.new[0], bad))
        now = f"`builder lock {definition} --update {unit.rpartition(': ')[2]}={good}` stays on the commit before"
    elif package := span.package(unit):
        old, new = span.versions(package)
        good, bad = good or old, bad or new
        stay = good
        if package == points.PACKAGE and (mirror.is_commit(good) or mirror.is_commit(bad)):
            before, facts = (
                _answered(workspace, partial(points.commit_facts, workspace, point)) for point in (good, bad)
            )
            if before and facts:
                stay = before.commit if wheels.named(good) else good
                good, bad = before.commit, facts.commit
        now = f"`{package}=={good}` under `python.packages` in dockerfiles/{definition}/image.yaml stays on that"
        if package == points.PACKAGE:
            now = points.to_stay_on(workspace.project, span, definition, stay)
    else:
        change = points.change_of(span, unit)
        if culprit.axis == mixtures.BASE:
            return _of_bases(running, span, conclusion, culprit, change)
        path = {
            "mod": f"mods/{culprit.axis.removeprefix('mod ')}",
            "recipe": bisection.recipe,
            mixtures.TEMPLATE: f"dockerfiles/{definition} dockerfiles/_parts",
        }.get(culprit.axis.partition(" ")[0])
        undone = f"`builder rollback {bisection.target}` goes back to {span.old}"
        now = f"`git log -p {path}` shows who changed it" if path else undone
    commit = (facts.title, facts.author, facts.date, facts.files) if facts else ()
    return replace(FoundCulprit(culprit.axis, unit, good, bad, culprit.between, *commit), change=change, now=now)


def _of_bases(
    running: RunningBisection, span: NumberSpan, conclusion: Conclusion, culprit: Culprit, change: str
) -> FoundCulprit:
    """The facts of two base images; where the commits of vLLM inside the guilty day were tried, those of a commit."""
    workspace, bisection = running.workspace, running.bisection
    good, bad, between = culprit.good, culprit.bad, culprit.between
    facts: CommitFacts | None = None
    note = ""
    inside = (row.points for row in bisection.rows if row.points and points.in_base(row.points[0])[1])
    if row := next((each for each in inside if {good, bad, *between} & {*each}), ()):
        # An end of the day counts as its own commit where the wheel of that could not be tried.
        before = good if good in row else row[0] if between and bad in row else ""
        after = bad if bad in row else row[-1] if between and good in row else ""
        good = points.in_base(row[0])[0]
        bad = next(each.before for each in bisection.rows if each.points == row)
        bad = bad or images.split_tag(span.bases[1].partition("@")[0])[1]
        between = row[row.index(before) + 1 : row.index(after)] if before and after else ()
        if not before and not after:
            note = "; no wheel of the commits inside that day could be tried"
        elif not before:
            note = "; with the published wheel of its own vLLM it fails, too, so that wheels do not show the commit"
        elif not after:
            note = f"; with the vLLM of {bad} it passes, so that the cause is something else in {bad}"
    change += _said_of_bases(workspace, span, good, bad) + _system_packages(workspace, span, conclusion)
    now = f"`builder rollback {bisection.target}` goes back to {span.old}"
    if good:
        definition = points.definition(workspace.project, ImageName(bisection.repository, bisection.numbers[-1]))
        now = f"`builder lock {definition} --update base={good}` stays on the image before {bad}{note}"
    if row and before and after:
        good, bad = points.in_base(before)[1], points.in_base(after)[1]
        facts = _answered(workspace, partial(points.commit_facts, workspace, after))
    commit = (facts.title, facts.author, facts.date, facts.files) if facts else ()
    between = tuple(points.in_base(point)[1] or point for point in between)
    return replace(FoundCulprit(culprit.axis, culprit.unit, good, bad, between, *commit), change=change, now=now)


def _said_of_bases(workspace: Workspace, span: NumberSpan, good: str, bad: str) -> str:
    """The difference of what the labels of two dated base images say, as the lines of a diff."""
    if not good or not bad:
        return ""
    name = images.repository(span.bases[0])
    cache, platform = workspace.project.engine_cache, span.builds.platform
    published_of = partial(registry.published, workspace.engine, name, (good, bad), platform, cache)
    published = _answered(workspace, published_of)
    labels = {image.tag: image.labels for image in published or ()}
    return _lines_of_diff(labels.get(good, {}), labels.get(bad, {}), "")


def _system_packages(workspace: Workspace, span: NumberSpan, conclusion: Conclusion) -> str:
    """The packages of the distribution in which the candidates on either side differ, as the lines of a diff; empty
    where an image cannot be asked any more."""
    workspace.report(Message("comparing the packages of the two images"))
    try:
        with work_folder.create(workspace, "bisect", {}) as work:
            tags = [points.image_of(workspace, span, tried)[0] for tried in (conclusion.good, conclusion.bad)]
            good, bad = (installed.read_system_packages(workspace.engine, tag, work.labels) for tag in tags)
    except (BuildFailedError, ImageStateError, SourceError) as error:
        workspace.report(Message(error.message))
        return ""
    return _lines_of_diff(good, bad, "package ")


def _lines_of_diff(before: Mapping[str, str], after: Mapping[str, str], what: str) -> str:
    return "".join(
        f"{sign}{what}{key.replace('_', ' ')} {side[key]}\n"
        for key in sorted({*before, *after})
        for sign, side in (("-", before), ("+", after))
        if before.get(key) != after.get(key) and key in side
    )


def _answered(workspace: Workspace, ask: Callable[[], T]) -> T | None:
    """The answer of others; where there is none, that is reported."""
    try:
        return ask()
    except SourceError as error:
        workspace.report(Message(error.message))
        return None
