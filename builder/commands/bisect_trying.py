"""A bisection builds candidates, tries them and records each verdict.

The report and the beginning come first, then the server, the words, the verdict and the image of a candidate.
The outlook and the steps as a whole follow.
A candidate has no number, and each one is made only once. The model's own server is restored afterwards.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, words
from builder.base.errors import (
    BuilderError,
    BuildFailedError,
    ConflictError,
    DiskFullError,
    FileProblemsError,
    ImageContentsError,
    ImageStateError,
    MeasuringError,
    NothingToDoError,
    ServeFailedError,
    SourceError,
    UsageError,
)
from builder.base.events import Message, ignore
from builder.building import bake, work_folder
from builder.building.bake import BakeJob
from builder.commands import measuring, servers
from builder.definitions import build_target, image
from builder.definitions import recipe as recipes
from builder.definitions.container import STOPPING_SECONDS
from builder.definitions.recipe import is_in_recipes, recorded
from builder.engine import images
from builder.engine.machine import free_disk, read_build_machine
from builder.evidence.records import Subject
from builder.lab.bisect import points, search, session
from builder.lab.bisect.search import BisectSubject, Conclusion, ListPoints, Trial, TryCandidate
from builder.lab.bisect.session import Bisection, BisectOutlook, Judge
from builder.lab.measure import own_script, probes, served_model
from builder.lab.prove import judging, prove
from builder.lab.prove.judging import Reference
from builder.lab.prove.prove import ProvedPairing
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.numbers import claims
from builder.plan import making, plan_model
from builder.serving import beside, readiness, selection, starting
from builder.serving.selection import UnnumberedImage
from builder.sources import foreign_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from builder.base.project import Project
    from builder.definitions.recipe import Recipe
    from builder.lab.bisect.points import NumberSpan
    from builder.lab.bisect.search import BisectCandidate, Culprit
    from builder.lock.model import Lock, Pairing, Repository
    from builder.numbers.workspace import Workspace
    from builder.plan.plan_model import StagedFile
    from builder.serving.running import RunningServer
    from builder.sources.vllm_versions import CommitFacts


# The report of a bisection: what was found, or what the user has to look at.


@dataclass(frozen=True)
class FoundCulprit:
    """A culprit with what there is to say of it: the upstream ``commit``, the change as ``text`` (a unified diff), and
    the ``hint`` of what can be done now."""

    culprit: Culprit
    commit: CommitFacts | None = None
    text: str = ""
    hint: str = ""


@dataclass(frozen=True)
class BisectReport:
    """The end of a bisection, or of its steps for now. ``problem`` says why nothing was found; ``folder`` holds the
    build directories of the sides that are no number. ``between`` are the two neighbouring numbers between which the
    culprit came. ``look`` is what the user has to look at."""

    bisection: Bisection
    conclusion: Conclusion | None = None
    culprits: tuple[FoundCulprit, ...] = ()
    problem: str = ""
    folder: str = ""
    look: LookNow | None = None
    between: tuple[int, int] | None = None


# The beginning of a bisection: the two ends, the numbers between them that are there, and the judge.


@dataclass(frozen=True)
class BisectRequest:
    """A bisection as typed: ``text`` is a model, a recipe or a definition; the ends are numbers, None where the lock
    tells them."""

    text: str
    judge: Judge
    good: int | None = None
    bad: int | None = None
    find_fix: bool = False


def of_request(workspace: Workspace, request: BisectRequest) -> Bisection:
    """The bisection that is asked for. Raises UsageError where it names nothing, ImageStateError where an end is not in
    the engine, NothingToDoError where there is no number to begin from."""
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
    ends = _ends(repository_name, repository, pairings, request)
    _require_judge(project, request.judge, recipe)
    numbers = _numbers(workspace, repository_name, repository, ends)
    return Bisection(
        target=request.text,
        repository=repository_name,
        platform=repository.numbers[ends[0]].platform,
        numbers=numbers,
        judge=request.judge,
        started=words.now(),
        find_fix=request.find_fix,
        recipe=recipe.file if recipe else "",
        recipe_before=_recipe_before(project, recipe, repository, ends),
        served=measuring.server_of(workspace, recipe) is not None,
    )


def again(workspace: Workspace, bisection: Bisection) -> Bisection:
    """A bisection of the journal with what the journal does not hold: its recipe and platform, by the name that was
    typed. Raises what `of_request` does, ConflictError where the name means other images now."""
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
        path = recorded(project, paired.recipe)
        recipe = selection.select_image(project, lock, text).recipe if path else None
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
    last = request.good if request.find_fix else request.bad
    first = request.bad if request.find_fix else request.good
    last = last or (present if not request.find_fix else max(repository.numbers))
    for number in filter(None, (first, last)):
        if number not in repository.numbers:
            raise UsageError(f"{name} has no number {number}", hint="`builder list` shows the numbered images")
    if last is None:
        raise NothingToDoError(f"no number of {name} is current", hint="--bad N says which one fails")
    first = first or (present if request.find_fix else _last_good(repository, pairings, last))
    if first is None and not request.find_fix:
        hint = f"--good N says which one; `builder mark {name}:N good` keeps that"
        raise UsageError(f"no number before {name}:{last} is known to be good", hint=hint)
    if first is None or first == last:
        raise UsageError(f"{name}:{last} cannot be both ends", hint="--good N and --bad N say between which to look")
    return first, last


def _last_good(repository: Repository, pairings: tuple[Pairing, ...], last: int) -> int | None:
    """The number that was good last: marked so, with the model or by itself; else what was paired or current before."""
    earlier = [number for number in repository.numbers if number != last]
    paired = {pairing.image.number: pairing for pairing in pairings}
    marked = [
        number
        for number in earlier
        if (paired[number].status if number in paired else repository.numbers[number].status) == "good"
    ]
    if below := [number for number in marked if number < last]:
        return max(below)
    order = (*(pairing.image.number for pairing in pairings), *repository.previous)
    usable = [number for number in order if number in earlier and repository.numbers[number].status != "bad"]
    return next(iter(usable), max(marked, default=None))


def _numbers(workspace: Workspace, name: str, repository: Repository, ends: tuple[int, int]) -> tuple[int, ...]:
    """The ends, and between them every number whose image this engine has as it was recorded."""
    low, high = sorted(ends)
    between = [number for number in sorted(repository.numbers) if low < number < high]
    usable = [number for number in between if _is_here(workspace, name, repository, number)]
    for number in ends:
        if not _is_here(workspace, name, repository, number):
            raise ImageStateError(
                f"{name}:{number} is not in this engine as images.lock records it",
                hint=f"`builder rebuild {name}:{number}` makes it again, `builder pull {name}:{number}` fetches it",
            )
    return tuple(sorted((*ends, *usable), reverse=ends[0] > ends[1]))


def _is_here(workspace: Workspace, name: str, repository: Repository, number: int) -> bool:
    details = images.inspect_image(workspace.engine, str(ImageName(name, number)))
    return details is not None and images.fingerprint(details) == repository.numbers[number].fingerprint


def _require_judge(project: Project, judge: Judge, recipe: Recipe | None) -> None:
    if judge.kind == "probe":
        probes.require(project, judge.name)
    if recipe is None and (judge.kind in {"probe", "prove"} or (judge.kind == "script" and judge.serves)):
        hint = "name a recipe or a model, or give `--run SCRIPT --no-serve`, which gets the image alone"
        raise UsageError("a definition does not say how a model is served", hint=hint)


def _recipe_before(project: Project, recipe: Recipe | None, repository: Repository, ends: tuple[int, int]) -> str:
    """The recipe as the project's git had it before: when the image that fails was built, or where it was edited before
    that build, when the first number was. Empty where it is the same now."""
    if recipe is None:
        return ""
    moments = [repository.numbers[number].built for number in (max(ends), ends[0])]
    texts = (_recipe_at(project, recipe, moment) for moment in moments)
    return next((text for text in texts if text not in {"", recipe.text}), "")


def _recipe_at(project: Project, recipe: Recipe, moment: str) -> str:
    commit = foreign_files.last_change(project.root, recipe.file, moment)
    content = foreign_files.read_file(project.root, commit, recipe.file) if commit else None
    try:
        return content.decode() if content else ""
    except UnicodeDecodeError:
        return ""


# The server of a candidate, for as long as it is looked at; the model's own is as before afterwards.

_LEFT = "which a bisection left"


def recipe_of(workspace: Workspace, bisection: Bisection, text: str = "") -> Recipe:
    """The recipe of a bisection, or what another ``text`` of it means. Raises FileProblemsError."""
    if not text:
        return recipes.load_recipe(workspace.project, workspace.project.root / bisection.recipe)
    parsed = recipes.parse_recipe(text, bisection.recipe)
    if parsed.recipe is None or parsed.problems:
        raise FileProblemsError(parsed.problems)
    return parsed.recipe


def start(workspace: Workspace, bisection: Bisection, recipe: Recipe, tag: str) -> RunningServer:
    """Starts the server of the image ``tag`` and waits until it answers. Raises what `readiness.wait_until_ready`
    does."""
    request = measuring.request_as_before(workspace, recipe)
    definition = image.of_repository(workspace.project, bisection.repository)
    selection = UnnumberedImage(replace(recipe, container=tag), definition)
    prepared = beside.prepare(workspace, request, selection)
    measuring.make_room(workspace, request.text, prepared)
    started = starting.start_server(prepared, workspace.environment)
    readiness.wait_until_ready(
        workspace.project, started, workspace.report, limit=measuring.start_limit(workspace, prepared)
    )
    return started.server


@contextmanager
def served(workspace: Workspace, bisection: Bisection, recipe: Recipe, tag: str) -> Iterator[RunningServer]:
    """The server of the image ``tag`` for the duration of the block."""
    server = start(workspace, bisection, recipe, tag)
    try:
        yield server
    finally:
        servers.end_server(server, STOPPING_SECONDS)


def stop_candidates(workspace: Workspace, bisection: Bisection) -> None:
    """Ends the server of a candidate that is there."""
    if bisection.recipe and (workspace.project.root / bisection.recipe).is_file():
        measuring.stop_left_over(workspace, recipe_of(workspace, bisection), _LEFT)


def serve_as_before(workspace: Workspace, bisection: Bisection) -> None:
    """Ends what candidates left, and starts the model's own server again where it ran at the beginning."""
    if bisection.recipe and (workspace.project.root / bisection.recipe).is_file():
        stop_candidates(workspace, bisection)
        if bisection.served:
            measuring.serve_again(workspace, recipe_of(workspace, bisection))


# A bisection in words: what is tried, what came of it, and how much is left.

_SHOWN = 3
_MOST_AHEAD = 60


def of_candidate(candidate: BisectCandidate, repository: str = "") -> str:
    """A candidate in words: a number, or what it takes of another."""
    if candidate.number is not None:
        return f"{repository}:{candidate.number}" if repository else f"number {candidate.number}"
    short = {unit: point[:12] if len(point) == 40 else point for unit, point in candidate.points}
    taken = [f"{unit} at {short[unit]}" if unit in short else unit for unit in candidate.taken]
    more = f" and {len(taken) - _SHOWN} more" if len(taken) > _SHOWN else ""
    return f"number {candidate.old} with {', '.join(taken[:_SHOWN])}{more} of {candidate.new}"


def of_question(bisection: Bisection, subject: BisectSubject, question: TryCandidate) -> str:
    """The step that begins now."""
    tried = list(dict.fromkeys(trial.candidate for trial in bisection.done))
    number = tried.index(question.candidate) + 1 if question.candidate in tried else len(tried) + 1
    times = f", {question.times} times" if question.times > 1 else ""
    again = " again" if question.candidate in tried else ""
    left = steps_left(bisection, subject)
    about = f", about {left} to go" if left else ""
    return f"step {number}{about}: trying {of_candidate(question.candidate, bisection.repository)}{again}{times}"


def of_trial(trial: Trial) -> str:
    """The outcome of a trial."""
    word = "skipped" if trial.skipped else "bad" if trial.failed and not trial.passed else "good"
    if trial.passed and trial.failed:
        word = f"good {trial.passed} of {trial.tries} times"
    note = trial.skipped or trial.note
    took = f" after {words.duration_text(trial.seconds)}" if trial.seconds >= 1 else ""
    return f"  {word}{took}{f': {note}' if note else ''}"


def steps_left(bisection: Bisection, subject: BisectSubject) -> int:
    """The number of candidates that are still to be tried, as far as it can be known."""
    return len(candidates_ahead(bisection, subject))


def candidates_ahead(bisection: Bisection, subject: BisectSubject) -> tuple[BisectCandidate, ...]:
    """The candidates that are still to be tried, if every verdict is the less favourable one, as far as it can be
    known: what lies between two commits is only known once their axis is."""
    answers = bisection.answers
    ahead: list[BisectCandidate] = []
    while len(ahead) < _MOST_AHEAD:
        step = search.next_step(subject, answers)
        if not isinstance(step, search.TryCandidate):
            break
        number = step.candidate.number
        fails = number == bisection.numbers[-1] or (number is None)
        if bisection.find_fix:
            fails = not fails
        trial = search.Trial(step.candidate, 0 if fails else step.times, step.times if fails else 0)
        answers = search.Answers((*answers.trials, trial), answers.rows)
        ahead.append(step.candidate)
    return tuple(dict.fromkeys(ahead))


# The verdict on a candidate's image: by a script, a probe, or the proof of its templates and parsers.

# `git bisect run`: https://git-scm.com/docs/git-bisect
_SKIP, _LAST = 125, 127
_LARGEST = 64 << 20
_SCRIPT_SECONDS = 6 * 3600.0


def require_script(judge: Judge) -> None:
    """Raises UsageError for a script that cannot be run."""
    if judge.kind != "script":
        return
    if not Path(judge.name).is_file():
        raise UsageError(f"there is no script {judge.name}", hint="--run takes a program: 0 is good, 125 skip, 1 bad")
    if not os.access(judge.name, os.X_OK):
        raise UsageError(
            f"{judge.name} cannot be run as a program",
            hint=f"`chmod +x {judge.name}`, and begin it with a line such as `#!/bin/sh`",
        )


def trials(
    workspace: Workspace, bisection: Bisection, question: TryCandidate, tag: str, recipe_text: str
) -> Iterator[Trial]:
    """Yields each trial of a candidate, as many as are asked for, each when it is over. A server that does not start,
    or cannot be looked at, is a reason to go around it; for one that does not even in the end that fails, see
    `Bisection.unstartable`."""
    judge, tried = bisection.judge, question.candidate
    try:
        recipe = recipe_of(workspace, bisection, recipe_text) if bisection.recipe else None
        if judge.kind == "prove" and recipe:
            yield _proved(workspace, bisection, tried, recipe, tag)
            return
        with served(workspace, bisection, recipe, tag) if recipe and judge.serves else nullcontext() as server:
            done = 0
            while done < question.times:
                trial = _judged(workspace, judge, tried, tag, server)
                yield trial
                done += trial.tries
                if trial.skipped:
                    return
    except ServeFailedError as error:
        reason = f"does not start: {error.message.splitlines()[0]}"
        if bisection.unstartable or _is_failing_end(bisection, tried):
            yield Trial(tried, failed=question.times, note=reason)
        else:
            yield Trial(tried, skipped=reason)
    # A mixture of two recipes may be none.
    except (MeasuringError, FileProblemsError, ImageContentsError, UsageError) as error:
        yield Trial(tried, skipped=error.message.splitlines()[0])


def _is_failing_end(bisection: Bisection, tried: BisectCandidate) -> bool:
    return tried.number == bisection.numbers[0 if bisection.find_fix else -1]


def is_unstartable(bisection: Bisection, trial: Trial) -> bool:
    """True where the end that fails does not even start: then that is what is looked for."""
    return _is_failing_end(bisection, trial.candidate) and trial.note.startswith("does not start")


def _judged(
    workspace: Workspace, judge: Judge, tried: BisectCandidate, tag: str, server: RunningServer | None
) -> Trial:
    if judge.kind == "probe" and server:
        measured = served_model.find_measured_server(server)
        outcome = probes.run_probe(
            workspace.project, measured.model, judge.name, workspace.environment, workspace.report
        )
        note = next((finding.text.splitlines()[0] for finding in outcome.findings if finding.text), "")
        if outcome.verdict == "unclear":
            return Trial(tried, skipped=f"the probe came to no verdict: {note}")
        runs, failed = outcome.counts.get("runs", 0), outcome.counts.get("failed", 0)
        if not runs:
            return Trial(tried, int(outcome.verdict != "fail"), int(outcome.verdict == "fail"), note=note)
        return Trial(tried, runs - failed, failed, note=note)
    variables = {"BUILDER_IMAGE": tag, "BUILDER_CANDIDATE": of_candidate(tried)}
    if server:
        model = served_model.find_measured_server(server).model
        variables |= {"BUILDER_ADDRESS": model.address, "BUILDER_MODEL": model.name}
    return _by_script(workspace, Path(judge.name), tried, variables)


def _by_script(workspace: Workspace, script: Path, tried: BisectCandidate, variables: Mapping[str, str]) -> Trial:
    """Runs the user's script. Raises ConflictError where it says to stop, as `git bisect run` does for 128 and more."""
    environ = {**workspace.environment, **variables}
    ended = own_script.run_bounded(
        [str(script.absolute())], folder=Path.cwd(), environ=environ, seconds=_SCRIPT_SECONDS
    )
    note = ended.last_lines.splitlines()[-1] if ended.last_lines else ""
    if ended.cause == "time":
        return Trial(tried, skipped=f"{script.name} had not ended after 6 hours")
    if ended.exit_code == _SKIP:
        return Trial(tried, skipped=note or f"{script.name} ended with {_SKIP}")
    if ended.cause == "itself" and not 0 <= ended.exit_code <= _LAST:
        how = f"by signal {-ended.exit_code}" if ended.exit_code < 0 else f"with {ended.exit_code}"
        raise ConflictError(
            f"{script.name} ended {how}, which says to stop: {note}".rstrip(": "),
            hint="give the same command again to go on where it was; 0 is good, 125 skips, 1 to 127 is bad",
        )
    passed = ended.cause == "itself" and ended.exit_code == 0
    return Trial(tried, int(passed), int(not passed), note=note)


def _proved(workspace: Workspace, bisection: Bisection, tried: BisectCandidate, recipe: Recipe, tag: str) -> Trial:
    """Proves the image against the behaviour of the end that passes: what changed since then is what is looked for."""
    project, lock = workspace.project, lock_file.read_project_lock(workspace.project)
    passing = bisection.numbers[-1 if bisection.find_fix else 0]
    model = recipe.model or recipe.name
    own = _kept_reference(workspace) if tried.number != passing else None
    details = images.inspect_image(workspace.engine, tag)
    subject = Subject(tag, images.fingerprint(details) if details else "")
    find = own or judging.find_reference(project, lock, bisection.repository, passing, model)
    pairing = ProvedPairing(model, recipe.revision, recipe)
    with work_folder.create(workspace, "bisect", {}) as work:
        (proof,) = prove.prove_models(workspace, tag, subject, (pairing,), lambda _: find, work.labels)
    evidence = proof.evidence
    if tried.number == passing and evidence.verdict != "fail":
        _keep_reference(workspace, tag, evidence.goldens, proof.raw)
    finding = next(iter(evidence.findings), None)
    note = f"{finding.check} at {finding.at}: {finding.text.splitlines()[0]}" if finding and finding.text else ""
    if evidence.verdict == "unclear" and not evidence.goldens:
        return Trial(tried, skipped=f"the proof came to no verdict: {note}")
    failed = evidence.verdict == "fail" or (evidence.verdict == "changed" and tried.number != passing)
    return Trial(tried, int(not failed), int(failed), note=note if failed else "")


def _keep_reference(workspace: Workspace, tag: str, goldens: Mapping[str, str], raw: bytes) -> None:
    content = {"image": tag, "goldens": dict(goldens), "texts": json.loads(raw).get("texts", {})}
    files.write_state(workspace.project.bisecting / "reference.json", json.dumps(content).encode())


def _kept_reference(workspace: Workspace) -> Reference | None:
    try:
        content = json.loads(files.read_plain_file(workspace.project.bisecting / "reference.json", _LARGEST))
        return Reference(content["image"], content["goldens"], content["texts"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


# The images of candidates: without a number, named after what they are made of, so that each is made once.

PREFIX = "builder-bisect-"


@dataclass(frozen=True)
class CandidateImage:
    """The image of a candidate, by its tag; ``problem`` says why there is none."""

    tag: str
    problem: str = ""


def build_of(
    workspace: Workspace, span: NumberSpan, candidate: BisectCandidate
) -> tuple[dict[str, StagedFile], dict[str, object]] | None:
    """The build directory of a candidate, its files and targets; None for one whose image is there, a number's. Raises
    SourceError for a point that cannot be had."""
    taken = span.units_of_image(candidate)
    if span.builds is None or not taken or (taken == span.every and not candidate.points):
        return None
    chosen = dict(candidate.points)
    values = points.values(workspace, span, chosen)
    files = search.files(span.builds, taken, values)
    points.require_fitting(workspace, span, chosen, files)
    return files, search.targets(span.builds, taken, values)


def tag_of(workspace: Workspace, span: NumberSpan, candidate: BisectCandidate) -> str:
    """The tag that the image of a candidate has, or will have. Raises SourceError as `build_of`."""
    if candidate.number is not None:
        return str(ImageName(span.old.repository, candidate.number))
    build = build_of(workspace, span, candidate)
    if build is None:
        return str(span.new if span.units_of_image(candidate) else span.old)
    content = json.dumps([plan_model.files_hash(build[0]), build[1]], sort_keys=True)
    return f"{repository(workspace.project)}:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def make(workspace: Workspace, span: NumberSpan, candidate: BisectCandidate) -> CandidateImage:
    """Makes the image of a candidate unless it is there. One that cannot be built is no error: it is gone around.
    Raises DiskFullError, which tells nothing about the candidate."""
    try:
        tag = tag_of(workspace, span, candidate)
        build = None if candidate.number is not None else build_of(workspace, span, candidate)
        if build is None or images.inspect_image(workspace.engine, tag):
            return CandidateImage(tag)
        files, targets = build
        with work_folder.create(workspace, "bisect", {**files, making.FILE: making.bake_file(targets)}) as work:
            # The definition's own name: wheels of this machine are laid by it where its template looks for them.
            job = BakeJob(work.directory, points.definition(workspace.project, span.new) or "bisect", targets, work)
            bake.bake_images(workspace, [job])
            images.tag_image(workspace.engine, work.tag, tag)
    except DiskFullError as error:
        hint = f"{error.hint}; then give the same command again, to go on where it was"
        raise DiskFullError(error.message, log=error.log, hint=hint) from None
    except SourceError as error:
        return CandidateImage("", f"cannot be had: {error.message.splitlines()[0]}")
    except (BuildFailedError, FileProblemsError) as error:
        return CandidateImage("", f"does not build: {error.message.splitlines()[0]}")
    return CandidateImage(tag)


def remove_all(workspace: Workspace) -> int:
    """Removes the images of all candidates of the project; returns how many there were."""
    tags = images.image_tags(workspace.engine, [repository(workspace.project)])
    return sum(images.remove_image(workspace.engine, tag) for tag in sorted(tags))


def repository(project: Project) -> str:
    """The name under which the candidates of a project stand in the engine."""
    return f"{PREFIX}{claims.project_identity(project).id[:8].lower()}"


# The outlook of a bisection before its first candidate: the steps, the time to build their images, and the disk.

# For each answer the image that is tried, and one that was built meanwhile and is not needed.
_IMAGES_A_STEP = 2
_SOME_COMMIT = "0" * 40


def of_bisection(workspace: Workspace, bisection: Bisection, shared: BisectContext) -> BisectOutlook:
    """The outlook of a bisection: to the axis as the search goes if every verdict is the less favourable one, and then
    on the axis that takes the longest."""
    spans = [shared.spans(*pair) for pair in pairwise(bisection.numbers)]
    axes = [cost for span in spans for cost in _axes(workspace, span)]
    ends = {bisection.numbers[0], bisection.numbers[-1]}
    to_axis = [
        tried
        for tried in candidates_ahead(bisection, shared.subject)
        if tried.number not in ends and not search.is_inside_axis(shared.span_of(tried).axes, tried)
    ]
    built = [(tried, shared.span_of(tried)) for tried in to_axis if tried.number is None]
    times = [_seconds(workspace, span, span.units_of_image(tried), {}) for tried, span in built]
    on_axis = max((steps for _, steps, _ in axes), default=0)
    longest = max((steps * seconds for _, steps, seconds in axes), default=0.0)
    is_known = math.isfinite(sum(times) + sum(seconds for _, _, seconds in axes))
    machine = read_build_machine(workspace.engine)
    own = max((_own_bytes(workspace, span) for span in spans), default=0)
    return BisectOutlook(
        steps=len(to_axis) + on_axis,
        steps_on_axis=on_axis,
        axes=tuple(dict.fromkeys(text for text, _, _ in axes)),
        seconds=sum(times) + longest if is_known else None,
        disk=_IMAGES_A_STEP * (len(times) + on_axis) * own,
        free=free_disk(machine.data_root) if machine else None,
    )


def _axes(workspace: Workspace, span: NumberSpan) -> Iterator[tuple[str, int, float]]:
    """Yields each axis in words, the steps to the place on it, and the seconds that the image of a step takes."""
    for axis in span.axes:
        rows = ((unit, commits) for unit in axis.units if (commits := points.finest(workspace, span, unit)) is not None)
        unit, commits = next(rows, (axis.units[0], None))
        if commits is None:
            count = len(axis.units)
            text = f"{axis.name} ({count})" if count > 1 else axis.name
            yield text, (count - 1).bit_length(), _seconds(workspace, span, [unit], {})
        else:
            some = {f"{unit} commit": _SOME_COMMIT, f"package {unit}": _SOME_COMMIT}
            text = f"{axis.name} ({words.counted(len(commits), 'commit')} between)"
            yield text, len(commits).bit_length(), _seconds(workspace, span, [unit], some)


def _seconds(workspace: Workspace, span: NumberSpan, taken: Collection[str], values: Mapping[str, str]) -> float:
    """The seconds to build an image with these units, beside what the two numbers have: as long as each step took
    before. Infinite where one that compiles was never built here."""
    if span.builds is None:
        return 0.0
    steps = [
        search.titles(search.files(span.builds, units, own), search.targets(span.builds, units, own))
        for units, own in ((taken, values), ((), {}), (span.every, {}))
    ]
    wanted, *done = steps
    expected = bake.expected_steps(bake.load_step_times(workspace.project), search.new_titles(wanted, *done))
    return math.inf if expected is None else expected


def _own_bytes(workspace: Workspace, span: NumberSpan) -> int:
    """The bytes of the layers that the newer number does not share with the older one: about what a candidate takes."""
    old, new = (images.inspect_image(workspace.engine, str(name)) for name in (span.old, span.new))
    if old is None or new is None:
        return 0
    sizes = images.layer_sizes(workspace.engine, (new,))
    shared = set(images.layers(old))
    return sum(sizes.get(layer, 0) for layer in images.layers(new) if layer not in shared)


# The steps of a bisection: each question is answered and noted, until there is none, or the user has to look.


@dataclass(frozen=True)
class BisectContext:
    """The things that the steps share: the spans of the numbers, and the subject of the search."""

    spans: Callable[[int, int], NumberSpan]
    subject: BisectSubject

    def span_of(self, candidate: BisectCandidate) -> NumberSpan:
        numbers = self.subject.numbers
        if candidate.number is None:
            return self.spans(candidate.old, candidate.new)
        place = max(numbers.index(candidate.number), 1)
        return self.spans(numbers[place - 1], numbers[place])


@dataclass(frozen=True)
class LookNow:
    """The end of the steps for now: the user has to look at a candidate, and at its server where it has one."""

    image: str
    address: str


def context(workspace: Workspace, bisection: Bisection) -> BisectContext:
    """The context of a bisection."""
    text = recipe_of(workspace, bisection).text if bisection.recipe else ""
    read = points.span_reader(workspace.project, bisection, text)
    subject = BisectSubject(
        numbers=bisection.numbers,
        axes=lambda old, new: read(old, new).axes,
        impossible=points.reader(workspace, read),
        find_fix=bisection.find_fix,
        single=bisection.judge.is_constant,
    )
    return BisectContext(read, subject)


def go_on(workspace: Workspace, bisection: Bisection) -> tuple[Bisection, Conclusion | LookNow]:
    """Answers every question, the journal written after each. Where the first number does not do what it should with
    the recipe that git has of its time, that was not the one by which it was served: then it has the present one."""
    bisection, result = _answered(workspace, bisection)
    first = bisection.numbers[0]
    if not isinstance(result, Conclusion) or not bisection.recipe_before:
        return bisection, result
    if result.ending != "good end fails" and not any(trial.skipped for trial in bisection.of_number(first)):
        return bisection, result
    wrong = f"{bisection.repository}:{first} does not do what it should with the {bisection.recipe} of its time"
    workspace.report(Message(f"{wrong}: trying it with the present one"))
    others = tuple(trial for trial in bisection.done if trial.candidate.number != first)
    bisection = _noted(workspace, replace(bisection, recipe_before="", present_recipe=True, done=others))
    return _answered(workspace, bisection)


def _answered(workspace: Workspace, bisection: Bisection) -> tuple[Bisection, Conclusion | LookNow]:
    shared = context(workspace, bisection)
    with _preparing(workspace, shared) as prepare:
        while True:
            step = search.next_step(shared.subject, bisection.answers)
            if isinstance(step, Conclusion):
                return bisection, step
            if isinstance(step, ListPoints):
                row = points.row(workspace, shared.spans(step.old, step.new), step)
                bisection = _noted(workspace, replace(bisection, rows=(*bisection.rows, row)))
                continue
            workspace.report(Message(of_question(bisection, shared.subject, step)))
            made = prepare.image(step.candidate)
            if made.problem:
                bisection = _tried(workspace, bisection, Trial(step.candidate, skipped=made.problem))
            elif bisection.judge.kind == "user":
                bisection, shown = _shown(workspace, shared, bisection, step, made.tag)
                if shown:
                    return bisection, shown
            else:
                prepare.ahead(search.likely_next(shared.subject, bisection.answers, step))
                bisection = _with_trials(workspace, shared, bisection, step, made.tag)


def _with_trials(
    workspace: Workspace, shared: BisectContext, bisection: Bisection, step: TryCandidate, tag: str
) -> Bisection:
    began = time.monotonic()
    for trial in trials(workspace, bisection, step, tag, _recipe_text(shared, bisection, step.candidate)):
        unstartable = bisection.unstartable or is_unstartable(bisection, trial)
        timed = replace(trial, seconds=round(time.monotonic() - began, 1), note=trial.note[:300])
        bisection = _tried(workspace, replace(bisection, unstartable=unstartable), timed)
        began = time.monotonic()
    return bisection


def _tried(workspace: Workspace, bisection: Bisection, trial: Trial) -> Bisection:
    workspace.report(Message(of_trial(trial)))
    return _noted(workspace, bisection.with_trial(trial))


def _shown(
    workspace: Workspace, shared: BisectContext, bisection: Bisection, step: TryCandidate, tag: str
) -> tuple[Bisection, LookNow | None]:
    """Starts the server of a candidate, for the user to look at; None where it does not start."""
    address = ""
    bisection = _noted(workspace, replace(bisection, waiting=step.candidate))
    if bisection.recipe:
        try:
            recipe = recipe_of(workspace, bisection, _recipe_text(shared, bisection, step.candidate))
            address = start(workspace, bisection, recipe, tag).address or ""
        except BuilderError as error:
            reason = f"does not start: {error.message.splitlines()[0]}"
            return _tried(workspace, bisection, Trial(step.candidate, skipped=reason)), None
    return bisection, LookNow(tag, address)


def _recipe_text(shared: BisectContext, bisection: Bisection, candidate: BisectCandidate) -> str:
    """The recipe by which a candidate is served; empty for the present one. The first number has its own, all others
    the present one."""
    if not bisection.recipe_before:
        return ""
    if candidate.number is not None:
        return bisection.recipe_before if candidate.number == bisection.numbers[0] else ""
    return shared.span_of(candidate).recipe_text(candidate)


def _noted(workspace: Workspace, bisection: Bisection) -> Bisection:
    session.write_bisection(workspace.project, bisection)
    return bisection


class CandidatesAhead:
    """The images of candidates, made in the background one after the other while another one is looked at."""

    def __init__(self, workspace: Workspace, shared: BisectContext, pool: ThreadPoolExecutor) -> None:
        self.workspace, self.shared, self.pool = workspace, shared, pool
        self.begun: dict[BisectCandidate, Future[CandidateImage]] = {}

    def image(self, candidate: BisectCandidate) -> CandidateImage:
        """The image of a candidate: what is being made in the background already, or made now, and not after what is
        no longer needed."""
        future = self.begun.pop(candidate, None)
        for other in self.begun.values():
            other.cancel()
        self.begun.clear()
        if future and not future.cancel():
            return future.result()
        return make(self.workspace, self.shared.span_of(candidate), candidate)

    def ahead(self, candidates: tuple[BisectCandidate, ...]) -> None:
        """Begins to make the images of what may be next."""
        quiet = replace(self.workspace, report=ignore)
        for candidate in candidates:
            if candidate not in self.begun:
                span = self.shared.span_of(candidate)
                self.begun[candidate] = self.pool.submit(make, quiet, span, candidate)


@contextmanager
def _preparing(workspace: Workspace, shared: BisectContext) -> Iterator[CandidatesAhead]:
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="bisect") as pool:
        try:
            yield CandidatesAhead(workspace, shared, pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
