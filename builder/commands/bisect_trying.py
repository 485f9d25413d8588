"""A bisection under way: candidates are built, tried and judged, and each answer is noted in the journal.

The bisection and its steps come first, then the images of candidates, their servers, the words, and the judges. A
candidate has no number, and each one is made only once. The model's own server is restored afterwards.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import files, records, words
from builder.base.errors import (
    BuilderError,
    BuildFailedError,
    ConflictError,
    DiskFullError,
    FileProblemsError,
    ImageContentsError,
    MeasuringError,
    ServeFailedError,
    SourceError,
    UsageError,
)
from builder.base.events import Message
from builder.building import bake, work_folder
from builder.building.bake import BakeJob
from builder.commands import measuring, servers
from builder.definitions import image
from builder.definitions import recipe as recipes
from builder.definitions.container import STOPPING_SECONDS
from builder.engine import images
from builder.evidence.run_record import Subject
from builder.lab.bisect import points, search, session
from builder.lab.bisect.search import BisectSubject, Conclusion, ListPoints, Trial, TryCandidate
from builder.lab.measure import own_script, probes, served_model
from builder.lab.prove import judging, prove
from builder.lab.prove.judging import Reference
from builder.lab.prove.prove import ProvedPairing
from builder.lab.same import image_likeness, text_rating
from builder.lab.same.forced_texts import TextPlan
from builder.lab.same.text_rating import RatedReference
from builder.lock import lock_file
from builder.plan import making
from builder.serving import readiness
from builder.serving.selection import UnnumberedImage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.definitions.recipe import Recipe
    from builder.lab.bisect.points import NumberSpan
    from builder.lab.bisect.search import BisectCandidate, Question
    from builder.lab.bisect.session import Bisection
    from builder.lab.measure.served_model import ServedModel
    from builder.numbers.workspace import Workspace
    from builder.serving.running import RunningServer


# The steps: each question is answered and noted, until there is none, or the user has to look.

_MOST_AHEAD = 60


@dataclass(frozen=True)
class LookNow:
    """The end of the steps for now: the user has to look at a candidate's image, and at the address of its server where
    it has one."""

    image: str
    address: str


class RunningBisection:
    """A bisection as far as it is, with what its steps share: the spans of the numbers, and the subject of the search.
    ``bisection`` is replaced as answers come."""

    def __init__(self, workspace: Workspace, bisection: Bisection) -> None:
        self.workspace, self.bisection = workspace, bisection
        text = recipe_of(workspace, bisection).text if bisection.recipe else ""
        self.spans = points.span_reader(workspace.project, bisection, text)
        self.subject = BisectSubject(
            numbers=bisection.numbers,
            axes=lambda old, new: self.spans(old, new).axes,
            impossible=points.conflict_reader(workspace, self.spans),
            find_fix=bisection.find_fix,
            single=bisection.judge.kind in {"prove", "same", "user"},
        )

    def next_step(self) -> Question | Conclusion:
        return search.next_step(self.subject, self.bisection.done, self.bisection.rows)

    def candidates_ahead(self) -> tuple[BisectCandidate, ...]:
        """The candidates that are still to be tried, if every verdict is the less favourable one, as far as it is
        known: what lies between two commits is only known once their axis is."""
        trials = self.bisection.done
        ahead: list[BisectCandidate] = []
        while len(ahead) < _MOST_AHEAD:
            step = search.next_step(self.subject, trials, self.bisection.rows)
            if not isinstance(step, TryCandidate):
                break
            fails = step.candidate.number in {None, self.bisection.numbers[-1]}
            if self.bisection.find_fix:
                fails = not fails
            trials = (*trials, Trial(step.candidate, 0 if fails else step.times, step.times if fails else 0))
            ahead.append(step.candidate)
        return tuple(dict.fromkeys(ahead))

    def answer_all(self) -> Conclusion | LookNow:
        """Answers every question, the journal written after each."""
        while True:
            step = self.next_step()
            if isinstance(step, Conclusion):
                return step
            if isinstance(step, ListPoints):
                tried = [trial.candidate for trial in self.bisection.done]
                row = points.row(self.workspace, self.spans(step.old, step.new), step, tried)
                self._note(rows=(*self.bisection.rows, row))
                continue
            self._report(self._question(step))
            span = self.spans(step.candidate.old, step.candidate.new)
            tag, problem = make(self.workspace, span, step.candidate)
            if problem:
                self._note_trial(Trial(step.candidate, skipped=problem))
            elif self.bisection.judge.kind != "user":
                self._try(step, tag, span.recipe_text(step.candidate))
            elif look := self._show(step.candidate, tag, span.recipe_text(step.candidate)):
                return look

    def _try(self, step: TryCandidate, tag: str, recipe_text: str) -> None:
        began = time.monotonic()
        for trial in trials(self.workspace, self.bisection, step, tag, recipe_text):
            # Where the end that fails does not even start, that is the fault that is looked for.
            is_end = trial.candidate.number == self.bisection.failing
            unstartable = self.bisection.unstartable or (is_end and trial.note.startswith("does not start"))
            timed = replace(trial, seconds=round(time.monotonic() - began, 1), note=trial.note[:300])
            self._note_trial(timed, unstartable=unstartable)
            began = time.monotonic()

    def _show(self, candidate: BisectCandidate, tag: str, recipe_text: str) -> LookNow | None:
        """Starts the server of a candidate, for the user to look at; None where it does not start."""
        self._note(waiting=candidate)
        if not self.bisection.recipe:
            return LookNow(tag, "")
        try:
            recipe = recipe_of(self.workspace, self.bisection, recipe_text)
            return LookNow(tag, start(self.workspace, self.bisection, recipe, tag).address or "")
        except BuilderError as error:
            self._note_trial(Trial(candidate, skipped=f"does not start: {error.message.splitlines()[0]}"))
            return None

    def _question(self, step: TryCandidate) -> str:
        tried = list(dict.fromkeys(trial.candidate for trial in self.bisection.done))
        number = tried.index(step.candidate) + 1 if step.candidate in tried else len(tried) + 1
        again = " again" if step.candidate in tried else ""
        times = f", {step.times} times" if step.times > 1 else ""
        left = len(self.candidates_ahead())
        about = f", about {left} to go" if left else ""
        return f"step {number}{about}: trying {of_candidate(step.candidate, self.bisection.repository)}{again}{times}"

    def _note_trial(self, trial: Trial, **changes: Any) -> None:
        self._report(of_trial(trial))
        self._note(done=(*self.bisection.done, trial), waiting=None, **changes)

    def _note(self, **changes: Any) -> None:
        self.bisection = replace(self.bisection, **changes)
        session.write_bisection(self.workspace.project, self.bisection)

    def _report(self, text: str) -> None:
        self.workspace.report(Message(text))


def answer_all(workspace: Workspace, bisection: Bisection) -> tuple[RunningBisection, Conclusion | LookNow]:
    """Takes all steps. The first number is tried with the recipe of its time. Where it does not do what it should with
    that one, another recipe served it then, and it is tried with the present one."""
    own = RunningBisection(workspace, bisection)
    result = own.answer_all()
    first, bisection = bisection.numbers[0], own.bisection
    tried = bisection.of_number(first)
    if not isinstance(result, Conclusion) or not bisection.recipe_before:
        return own, result
    if result.ending != "good end fails" and not any(trial.skipped for trial in tried):
        return own, result
    wrong = f"{bisection.repository}:{first} does not do what it should with the {bisection.recipe} of its time"
    workspace.report(Message(f"{wrong}: trying it with the present one"))
    others = tuple(trial for trial in bisection.done if trial not in tried)
    own = RunningBisection(workspace, replace(bisection, recipe_before="", present_recipe=True, done=others))
    session.write_bisection(workspace.project, own.bisection)
    return own, own.answer_all()


# The images of candidates: without a number, named after what they are made of, so that each is made once.


def make(workspace: Workspace, span: NumberSpan, candidate: BisectCandidate) -> tuple[str, str]:
    """Makes the image of a candidate unless it exists. Returns its tag, and a problem where it cannot be built: then
    the search goes around it. Raises DiskFullError, which says nothing about the candidate."""
    try:
        tag, build = points.image_of(workspace, span, candidate)
        if build is None or images.inspect_image(workspace.engine, tag):
            return tag, ""
        own_files, targets = build
        bake_file = making.bake_file(targets)
        with work_folder.create(workspace, "bisect", {**own_files, making.FILE: bake_file}) as work:
            # The definition's own name: its template looks below it for wheels of this machine.
            job = BakeJob(points.definition(workspace.project, span.new) or "bisect", targets, work)
            bake.bake_images(workspace, [job])
            images.tag_image(workspace.engine, work.tag, tag)
    except DiskFullError as error:
        hint = f"{error.hint}; then give the same command again, to go on where it was"
        raise DiskFullError(error.message, log=error.log, hint=hint) from None
    except SourceError as error:
        return "", f"cannot be had: {error.message.splitlines()[0]}"
    except (BuildFailedError, FileProblemsError) as error:
        return "", f"does not build: {error.message.splitlines()[0]}"
    return tag, ""


def remove_all(workspace: Workspace) -> int:
    """Removes the images of all candidates of the project; returns how many there were."""
    tags = images.image_tags(workspace.engine, [points.candidate_repository(workspace.project)])
    return sum(images.remove_image(workspace.engine, tag) for tag in sorted(tags))


# The server of a candidate, for as long as it is looked at; the model's own is as before afterwards.


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
    candidate = UnnumberedImage(replace(recipe, container=tag), definition)
    _, started, limit = measuring.start_candidate(workspace, request, candidate)
    readiness.wait_until_ready(workspace, started, limit=limit)
    return started.server


def stop_candidates(workspace: Workspace, bisection: Bisection, *, restore: bool) -> None:
    """Ends the server of a candidate; ``restore`` starts the model's own server again where it ran at the beginning."""
    if bisection.recipe and (workspace.project.root / bisection.recipe).is_file():
        recipe = recipe_of(workspace, bisection)
        servers.stop_candidates(workspace, recipe.file, "which a bisection left")
        if restore and bisection.served:
            measuring.serve_again(workspace, recipe)


# Candidates and trials in words.

_SHOWN = 3


def of_candidate(candidate: BisectCandidate, repository: str = "") -> str:
    """A candidate in words: a number, or what it takes of another."""
    if candidate.number is not None:
        return f"{repository}:{candidate.number}" if repository else f"number {candidate.number}"
    short = {unit: re.sub("([0-9a-f]{12})[0-9a-f]{28}$", r"\1", point) for unit, point in candidate.points}
    taken = [f"{unit} at {short[unit]}" if unit in short else unit for unit in candidate.taken]
    more = f" and {len(taken) - _SHOWN} more" if len(taken) > _SHOWN else ""
    return f"number {candidate.old} with {', '.join(taken[:_SHOWN])}{more} of {candidate.new}"


def of_trial(trial: Trial) -> str:
    """The outcome of a trial."""
    word = "skipped" if trial.skipped else "bad" if trial.failed and not trial.passed else "good"
    if trial.passed and trial.failed:
        word = f"good {trial.passed} of {trial.tries} times"
    note = trial.skipped or trial.note
    took = f" after {words.duration_text(trial.seconds)}" if trial.seconds >= 1 else ""
    return f"  {word}{took}{f': {note}' if note else ''}"


# The verdict on a candidate's image: by a script, a probe, the proof of its templates and parsers, or the same answers.

# `git bisect run`: https://git-scm.com/docs/git-bisect
_SKIP, _LAST = 125, 127
_LARGEST_REFERENCE = 1 << 30
_SCRIPT_SECONDS = 6 * 3600.0


def trials(
    workspace: Workspace, bisection: Bisection, question: TryCandidate, tag: str, recipe_text: str
) -> Iterator[Trial]:
    """Yields each trial of a candidate when it is over, as many as the question asks for. A server that does not start
    is a reason to skip the candidate, unless `Bisection.unstartable`."""
    judge, tried = bisection.judge, question.candidate
    try:
        recipe = recipe_of(workspace, bisection, recipe_text) if bisection.recipe else None
        if judge.kind == "prove" and recipe:
            yield _proved(workspace, bisection, tried, recipe, tag)
            return
        server = start(workspace, bisection, recipe, tag) if recipe and judge.serves else None
        try:
            done = 0
            while done < question.times:
                trial = _judged(workspace, bisection, tried, tag, server)
                yield trial
                done += trial.tries
                if trial.skipped:
                    return
        finally:
            if server:
                servers.end_server(server, STOPPING_SECONDS)
    except ServeFailedError as error:
        reason = f"does not start: {error.message.splitlines()[0]}"
        if bisection.unstartable or tried.number == bisection.failing:
            yield Trial(tried, failed=question.times, note=reason)
        else:
            yield Trial(tried, skipped=reason)
    # A mixture of two recipes may not be a valid recipe.
    except (MeasuringError, FileProblemsError, ImageContentsError, UsageError) as error:
        yield Trial(tried, skipped=error.message.splitlines()[0])


def _judged(
    workspace: Workspace, bisection: Bisection, tried: BisectCandidate, tag: str, server: RunningServer | None
) -> Trial:
    judge = bisection.judge
    model = served_model.find_measured_server(server).model if server else None
    if judge.kind == "same" and model:
        return _compared(workspace, bisection, tried, model)
    if judge.kind != "probe" or model is None:
        variables = {"BUILDER_IMAGE": tag, "BUILDER_CANDIDATE": of_candidate(tried)}
        if model:
            variables |= {"BUILDER_ADDRESS": model.address, "BUILDER_MODEL": model.name}
        return _by_script(workspace, Path(judge.name), tried, variables)
    outcome = probes.run_probe(workspace.project, model, judge.name, workspace.environment, workspace.report)
    note = next((finding.text.splitlines()[0] for finding in outcome.findings if finding.text), "")
    if outcome.verdict == "unclear":
        return Trial(tried, skipped=f"the probe came to no verdict: {note}")
    runs = outcome.counts.get("runs", 0) or 1
    failed = outcome.counts.get("failed", 0) if outcome.counts.get("runs") else int(outcome.verdict == "fail")
    return Trial(tried, runs - failed, failed, note=note)


def _compared(workspace: Workspace, bisection: Bisection, tried: BisectCandidate, model: ServedModel) -> Trial:
    """Compares the answers with those of the first number, which is tried before all others. If the bisection looks for
    a fix, the first number has the fault. Raises ConflictError if the answers of the first number are gone."""
    kept, plan, first = workspace.project.bisecting / "answers.json", TextPlan(), bisection.numbers[0]
    if tried.number == first:
        reference = RatedReference(*text_rating.rate_image(model, plan, of_candidate(tried), workspace.report))
        files.write_state(kept, records.text_of(reference, {}).encode())
        return Trial(tried, int(not bisection.find_fix), int(bisection.find_fix))
    try:
        reference = records.read_file(kept, RatedReference, largest=_LARGEST_REFERENCE)
    except (OSError, records.RecordError):
        raise ConflictError(
            f"the answers of {bisection.repository}:{first} are gone: {kept}",
            hint="`builder bisect stop` ends the bisection; begin it again",
        ) from None
    given = reference.prompts
    _, rated = text_rating.rate_image(model, plan, of_candidate(tried), workspace.report, given)
    likeness = image_likeness.compare_images(given, reference.rated, rated)
    note = image_likeness.first_difference(likeness)
    if likeness.verdict == "cannot tell":
        return Trial(tried, skipped=f"the answers do not tell: {note}")
    is_good = (likeness.verdict != "different") != bisection.find_fix
    return Trial(tried, int(is_good), int(not is_good), note=note)


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
    passing = bisection.passing
    model = recipe.model or recipe.name
    kept = project.bisecting / "reference.json"
    reference = None
    if tried.number != passing:
        with suppress(OSError, records.RecordError):
            reference = records.read_file(kept, Reference)
    reference = reference or judging.find_reference(project, lock, bisection.repository, passing, model)
    details = images.inspect_image(workspace.engine, tag)
    subject = Subject(tag, images.fingerprint(details) if details else "")
    pairing = ProvedPairing(model, recipe.revision, recipe)
    with work_folder.create(workspace, "bisect", {}) as work:
        (proof,) = prove.prove_models(workspace, tag, subject, (pairing,), lambda _: reference, work.labels)
    evidence = proof.evidence
    if tried.number == passing and evidence.verdict != "fail":
        passed = Reference(tag, evidence.goldens, json.loads(proof.raw).get("texts", {}))
        files.write_state(kept, records.text_of(passed, {}).encode())
    finding = next(iter(evidence.findings), None)
    note = f"{finding.check} at {finding.at}: {finding.text.splitlines()[0]}" if finding and finding.text else ""
    if evidence.verdict == "unclear" and not evidence.goldens:
        return Trial(tried, skipped=f"the proof came to no verdict: {note}")
    failed = evidence.verdict == "fail" or (evidence.verdict == "changed" and tried.number != passing)
    return Trial(tried, int(not failed), int(failed), note=note if failed else "")
