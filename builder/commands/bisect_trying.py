"""The steps of a bisection: candidates are built, tried and judged, and each answer is written to the journal.

The steps come first, then the server of a candidate, the judges, the recipe and the repository, the images of
candidates, and descriptions. A candidate has no number, and its image is made only once. The model's own server is
restored afterwards.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
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
from builder.base.values import dataclass, replace
from builder.building import bake, work_folder
from builder.building.bake import BakeJob
from builder.commands import measuring, servers
from builder.definitions import build_target, image
from builder.definitions import recipe as recipes
from builder.engine import images
from builder.evidence.run_record import Subject
from builder.lab.bisect import mixtures, points, search
from builder.lab.bisect.search import BisectCandidate, Bisection, Conclusion, ListPoints, Question, Trial, TryCandidate
from builder.lab.measure import forced_texts, image_likeness, measurement, own_script, probes
from builder.lab.measure.forced_texts import RatedReference, TextPlan
from builder.lab.prove import judging, prove
from builder.lab.prove.judging import Reference
from builder.lab.prove.prove import ProvedPairing
from builder.lock import lock_file
from builder.plan import making
from builder.serving import readiness, selection
from builder.serving.selection import UnnumberedImage
from builder.sources import foreign_files

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.recipe import Recipe
    from builder.lab.measure.measurement import ServedModel
    from builder.lock.model import Lock, Repository
    from builder.numbers.workspace import Workspace
    from builder.serving.preparation import ServeRequest


# The steps: each question is answered and recorded, until no question is open or the user must look at a candidate.

_MOST_AHEAD = 60
_LARGEST_REFERENCE = 1 << 30
_UNSTARTED = "does not start: "


@dataclass(frozen=True)
class LookNow:
    """The user must look at a candidate's image, and at the address of its server if it has a server."""

    image: str
    address: str


class RunningBisection:
    """A bisection so far, with the data that its steps share: the model's recipe (None for a definition), the spans of
    the numbers, and which units exclude each other. Each answer replaces ``bisection``.

    The journal contains neither recipe nor platform: they are found again by the typed name. Raises ConflictError if
    the name now means other images, and the errors of `subject_of`."""

    def __init__(self, workspace: Workspace, bisection: Bisection) -> None:
        self.workspace, self.bisection = workspace, bisection
        project, lock = workspace.project, lock_file.read_project_lock(workspace.project)
        self.recipe, name = subject_of(project, lock, bisection.target)
        repository = lock.images.get(name)
        if repository is None or name != bisection.repository or not {*bisection.numbers} <= repository.numbers.keys():
            message = f"{bisection.target} no longer names the images that its bisection compares"
            raise ConflictError(message, hint="`builder bisect stop` ends it")
        first = bisection.numbers[0]
        text = self.recipe.text if self.recipe else ""
        before = _recipe_before(project, self.recipe, repository, (first, bisection.numbers[-1]))
        self.spans = mixtures.span_reader(project, name, repository.numbers[first].platform, text, (first, before))
        self.is_impossible = points.conflict_reader(workspace, self.spans)

    def next_step(self, bisection: Bisection) -> Question | Conclusion:
        """The next step of ``bisection``, which may contain assumed answers."""
        return search.next_step(bisection, lambda old, new: self.spans(old, new).axes, self.is_impossible)

    def steps_ahead(self) -> int:
        """The number of candidates still to be tried in the worst case. Commits between two candidates count only after
        their axis is known."""
        supposed = self.bisection
        ahead: list[BisectCandidate] = []
        while len(ahead) < _MOST_AHEAD and isinstance(step := self.next_step(supposed), TryCandidate):
            fails = step.candidate.number in {None, supposed.numbers[-1]}
            trial = Trial(step.candidate, 0 if fails else step.times, step.times if fails else 0)
            supposed = replace(supposed, done=(*supposed.done, trial))
            ahead.append(step.candidate)
        return len({*ahead})

    def answer_all(self) -> Conclusion | LookNow:
        """Answers all questions, and writes the journal after each answer."""
        while not isinstance(step := self.next_step(self.bisection), Conclusion):
            tried = list(dict.fromkeys(trial.candidate for trial in self.bisection.done))
            if isinstance(step, ListPoints):
                row = points.row(self.workspace, self.spans(step.old, step.new), step, tried)
                self._note(rows=(*self.bisection.rows, row))
                continue
            candidate = step.candidate
            is_new = candidate not in tried
            number = len(tried) + 1 if is_new else tried.index(candidate) + 1
            what = of_candidate(candidate, self.bisection.repository)
            left = self.steps_ahead()
            about, times = f", about {left} to go" if left else "", f", {step.times} times" if step.times > 1 else ""
            again = "" if is_new else " again"
            self.workspace.report(Message(f"step {number}{about}: trying {what}{again}{times}"))
            span = self.spans(candidate.old, candidate.new)
            tag, problem = make_image(self.workspace, span, candidate)
            if problem:
                self._note_trial(Trial(candidate, skipped=problem))
            elif self.bisection.judge.kind == "user":
                if look := self._show(candidate, tag, span.recipe_text(candidate)):
                    return look
            else:
                began = time.monotonic()
                for trial in self._trials(step, tag, span.recipe_text(candidate)):
                    seconds = round(time.monotonic() - began, 1)
                    self._note_trial(replace(trial, seconds=seconds, note=trial.note[:300]))
                    began = time.monotonic()
        return step

    def _show(self, candidate: BisectCandidate, tag: str, recipe_text: str) -> LookNow | None:
        """Starts the server of a candidate for the user to look at. None if the server does not start."""
        self._note(waiting=candidate)
        address = ""
        try:
            if recipe := self._recipe(recipe_text):
                served = self._served(tag, recipe)
                _, started, limit = measuring.start_candidate(self.workspace, *served)
                readiness.wait_until_ready(self.workspace, started, limit=limit)
                address = started.server.address or ""
            return LookNow(tag, address)
        except BuilderError as error:
            self._note_trial(Trial(candidate, skipped=f"{_UNSTARTED}{error.message.splitlines()[0]}"))
            return None

    def _note_trial(self, trial: Trial) -> None:
        self.workspace.report(Message(of_trial(trial)))
        self._note(done=(*self.bisection.done, trial), waiting=None)

    def _note(self, **changes: Any) -> None:
        self.bisection = replace(self.bisection, **changes)
        search.write_bisection(self.workspace.project, self.bisection)

    def stop_candidates(self, *, restore: bool) -> None:
        """Stops the server of a candidate. ``restore`` starts the model's own server again if it ran before."""
        if self.recipe:
            servers.stop_candidates(self.workspace, self.recipe.file, "which a bisection left running")
            if restore and self.bisection.served:
                measuring.serve_again(self.workspace, self.recipe)

    # Judging a candidate's image with a script, a probe, a proof of templates and parsers, or a comparison of answers.

    def _trials(self, question: TryCandidate, tag: str, recipe_text: str) -> Iterator[Trial]:
        """Yields each trial of a candidate when it ends, as many as the question requires. A candidate whose server
        does not start is skipped, unless the bad end does not start either: then that is the fault."""
        tried, done = question.candidate, 0
        try:
            with ExitStack() as stack:
                recipe, model = self._recipe(recipe_text), None
                if recipe and self.bisection.judge.kind != "prove":
                    server = measuring.candidate_server(self.workspace, *self._served(tag, recipe))
                    model = measurement.find_measured_server(stack.enter_context(server)).model
                while done < question.times:
                    trial = self._judged(tried, tag, recipe, model)
                    yield trial
                    done += question.times if trial.skipped else trial.tries
        except ServeFailedError as error:
            reason, last = f"{_UNSTARTED}{error.message.splitlines()[0]}", search.of_number(self.bisection.numbers[-1])
            before = (trial for trial in self.bisection.done if trial.candidate == last)
            if tried == last or any(trial.note.startswith(_UNSTARTED) for trial in before):
                yield Trial(tried, failed=question.times, note=reason)
            else:
                yield Trial(tried, skipped=reason)
        # A mixture of two recipes may be invalid.
        except (MeasuringError, FileProblemsError, ImageContentsError, UsageError) as error:
            yield Trial(tried, skipped=error.message.splitlines()[0])

    def _recipe(self, text: str) -> Recipe | None:
        """The recipe, read from another ``text`` of its file if given. Raises FileProblemsError."""
        if self.recipe is None or not text:
            return self.recipe
        parsed = recipes.parse_recipe(text, self.recipe.file)
        if parsed.recipe is None or parsed.problems:
            raise FileProblemsError(parsed.problems)
        return parsed.recipe

    def _served(self, tag: str, recipe: Recipe) -> tuple[ServeRequest, UnnumberedImage]:
        """The request for a candidate's server, and the candidate's image."""
        definition = image.of_repository(self.workspace.project, self.bisection.repository)
        request = measuring.request_as_before(self.workspace, recipe)
        return request, UnnumberedImage(replace(recipe, container=tag), definition)

    def _judged(self, tried: BisectCandidate, tag: str, recipe: Recipe | None, model: ServedModel | None) -> Trial:
        workspace, judge = self.workspace, self.bisection.judge
        if judge.kind == "prove" and recipe:
            return self._proved(tried, recipe, tag)
        if judge.kind == "same" and model:
            return self._compared(tried, model)
        if judge.kind != "probe" or model is None:
            variables = {"BUILDER_IMAGE": tag, "BUILDER_CANDIDATE": of_candidate(tried)}
            if model:
                variables |= {"BUILDER_ADDRESS": model.address, "BUILDER_MODEL": model.name}
            return _by_script(workspace, Path(judge.name), tried, variables)
        outcome = probes.run_probe(workspace.project, model, judge.name, workspace.environment, workspace.report)
        note = next((finding.text.splitlines()[0] for finding in outcome.findings if finding.text), "")
        if outcome.verdict == "unclear":
            return Trial(tried, skipped=f"the probe reached no verdict: {note}")
        runs = outcome.counts.get("runs", 0) or 1
        failed = outcome.counts.get("failed", 0) if outcome.counts.get("runs") else int(outcome.verdict == "fail")
        return Trial(tried, runs - failed, failed, note=note)

    def _compared(self, tried: BisectCandidate, model: ServedModel) -> Trial:
        """Compares the answers with the answers of the good end, which is tried first. Raises ConflictError if the good
        end's answers are no longer stored."""
        workspace, first = self.workspace, self.bisection.numbers[0]
        kept, plan = workspace.project.bisecting / "answers.json", TextPlan()
        if tried.number == first:
            reference = RatedReference(*forced_texts.rate_image(model, plan, of_candidate(tried), workspace.report))
            files.write_state(kept, records.text_of(reference, {}).encode())
            return Trial(tried, passed=1)
        try:
            reference = records.read_file(kept, RatedReference, largest=_LARGEST_REFERENCE)
        except (OSError, records.RecordError):
            message = f"the recorded answers of {self.bisection.repository}:{first} are gone: {kept}"
            hint = "end the bisection with `builder bisect stop`, then start it again"
            raise ConflictError(message, hint=hint) from None
        given = reference.prompts
        _, rated = forced_texts.rate_image(model, plan, of_candidate(tried), workspace.report, given)
        likeness = image_likeness.compare_images(given, reference.rated, rated)
        note = image_likeness.first_difference(likeness)
        if likeness.verdict == "cannot tell":
            return Trial(tried, skipped=f"the answers give no clear verdict: {note}")
        failed = int(likeness.verdict == "different")
        return Trial(tried, 1 - failed, failed, note=note)

    def _proved(self, tried: BisectCandidate, recipe: Recipe, tag: str) -> Trial:
        """Proves the image, and compares its behaviour with the good end's."""
        workspace, project = self.workspace, self.workspace.project
        good, model = self.bisection.numbers[0], recipe.model or recipe.name
        kept = project.bisecting / "reference.json"
        reference = None
        if tried.number != good:
            with suppress(OSError, records.RecordError):
                reference = records.read_file(kept, Reference)
        lock = lock_file.read_project_lock(project)
        reference = reference or judging.find_reference(project, lock, self.bisection.repository, good, model)
        details = images.inspect_image(workspace.engine, tag)
        subject = Subject(tag, images.fingerprint(details) if details else "")
        pairing = ProvedPairing(model, recipe.revision, recipe)
        with work_folder.create(workspace, "bisect", {}) as work:
            (proof,) = prove.prove_models(workspace, tag, subject, (pairing,), lambda _: reference, work.labels)
        evidence = proof.evidence
        if tried.number == good and evidence.verdict != "fail":
            passed = Reference(tag, evidence.goldens, json.loads(proof.raw).get("texts", {}))
            files.write_state(kept, records.text_of(passed, {}).encode())
        finding = next(iter(evidence.findings), None)
        note = f"{finding.check} at {finding.at}: {finding.text.splitlines()[0]}" if finding and finding.text else ""
        if evidence.verdict == "unclear" and not evidence.goldens:
            return Trial(tried, skipped=f"the proof reached no verdict: {note}")
        failed = int(evidence.verdict == "fail" or (evidence.verdict == "changed" and tried.number != good))
        return Trial(tried, 1 - failed, failed, note=note if failed else "")


# Exit codes as for `git bisect run`: https://git-scm.com/docs/git-bisect
_SKIP, _LAST = 125, 127
_SCRIPT_SECONDS = 6 * 3600.0


def _by_script(workspace: Workspace, script: Path, tried: BisectCandidate, variables: Mapping[str, str]) -> Trial:
    """Runs the user's script. Raises ConflictError if it exits with 128 or more, which stops `git bisect run` too."""
    environ = {**workspace.environment, **variables}
    ended = own_script.run_bounded(
        [str(script.absolute())], folder=Path.cwd(), environ=environ, seconds=_SCRIPT_SECONDS
    )
    note = ended.last_lines.splitlines()[-1] if ended.last_lines else ""
    if ended.cause == "time":
        return Trial(tried, skipped=f"{script.name} did not end within 6 hours")
    if ended.exit_code == _SKIP:
        return Trial(tried, skipped=note or f"{script.name} ended with {_SKIP}")
    if ended.cause == "itself" and not 0 <= ended.exit_code <= _LAST:
        how = f"by signal {-ended.exit_code}" if ended.exit_code < 0 else f"with exit code {ended.exit_code}"
        message = f"{script.name} ended {how}, which stops the bisection: {note}".rstrip(": ")
        hint = "run the same command again to continue; exit code 0 means good, 125 skip, any other up to 127 bad"
        raise ConflictError(message, hint=hint)
    failed = int(ended.cause != "itself" or ended.exit_code != 0)
    return Trial(tried, 1 - failed, failed, note=note)


# The recipe and the repository that a name refers to.


def subject_of(project: Project, lock: Lock, text: str) -> tuple[Recipe | None, str]:
    """The recipe that serves ``text`` (None for a definition), and its repository."""
    if text in lock.models:
        paired = lock.models[text].pairing
        is_recorded = recipes.recorded(project, paired.recipe)
        recipe = selection.select_image(project, lock, text).recipe if is_recorded else None
        return recipe, paired.image.repository
    named = build_target.find_target(project, text, lock.models)
    if named.recipe is None:
        return None, image.repository_of(project, named.definition or "")
    if not recipes.is_in_recipes(project, project.root / named.recipe.file):
        message = f"{named.recipe.file} is not in recipes/: an interrupted bisection could not find it again"
        raise UsageError(message, hint="copy the recipe to recipes/, then use its name")
    model = lock.models.get(named.recipe.model or "")
    return named.recipe, model.pairing.image.repository if model else named.recipe.repository


def _recipe_before(project: Project, recipe: Recipe | None, repository: Repository, ends: tuple[int, int]) -> str:
    """The text of the recipe, from the project's git, when the later number was built, or else the good number: the
    first text that differs from the present text. Empty if neither differs."""
    if recipe is None:
        return ""
    for number in (max(ends), ends[0]):
        commit = foreign_files.last_change(project.root, recipe.file, repository.numbers[number].built)
        content = foreign_files.read_file(project.root, commit, recipe.file) if commit else None
        text = (content or b"").decode(errors="replace")
        if text not in {"", recipe.text}:
            return text
    return ""


# The images of candidates: without numbers, and named after their contents, so that each image is made once.


def make_image(workspace: Workspace, span: mixtures.NumberSpan, candidate: BisectCandidate) -> tuple[str, str]:
    """Makes the image of a candidate unless it exists. Returns its tag, and the problem if it cannot be built: the
    search then avoids this candidate. Raises DiskFullError: a full disk says nothing about the candidate."""
    try:
        tag, build = points.image_of(workspace, span, candidate)
        if build is None or images.inspect_image(workspace.engine, tag):
            return tag, ""
        own_files, targets = build
        bake_file = making.bake_file(targets)
        with work_folder.create(workspace, "bisect", {**own_files, making.FILE: bake_file}) as work:
            # Named after the definition: its template looks for local wheels in a folder with that name.
            job = BakeJob(points.definition(workspace.project, span.new) or "bisect", targets, work)
            bake.bake_images(workspace, [job])
            images.tag_image(workspace.engine, work.tag, tag)
    except DiskFullError as error:
        hint = f"{error.hint}; then run the same command again to continue"
        raise DiskFullError(error.message, log=error.log, hint=hint) from None
    except SourceError as error:
        return "", f"cannot be obtained: {error.message.splitlines()[0]}"
    except (BuildFailedError, FileProblemsError) as error:
        return "", f"does not build: {error.message.splitlines()[0]}"
    return tag, ""


def remove_all(workspace: Workspace) -> int:
    """Removes the images of all candidates of the project, and returns their number."""
    tags = images.image_tags(workspace.engine, [points.candidate_repository(workspace.project)])
    return sum(images.remove_image(workspace.engine, tag) for tag in sorted(tags))


# Descriptions of candidates and trials.

_SHOWN = 3


def of_candidate(candidate: BisectCandidate, repository: str = "") -> str:
    """Describes a candidate: a number, or a number with units of another number."""
    if candidate.number is not None:
        return f"{repository}:{candidate.number}" if repository else f"number {candidate.number}"
    at, point = candidate.point or ("", "")
    short = re.sub("([0-9a-f]{12})[0-9a-f]{28}$", r"\1", point)
    taken = [f"{unit} at {short}" if unit == at else unit for unit in candidate.taken]
    more = f" and {len(taken) - _SHOWN} more" if len(taken) > _SHOWN else ""
    return f"number {candidate.old} with {', '.join(taken[:_SHOWN])}{more} from number {candidate.new}"


def of_trial(trial: Trial) -> str:
    """Describes the outcome of a trial."""
    word = "skipped" if trial.skipped else "bad" if trial.failed and not trial.passed else "good"
    if trial.passed and trial.failed:
        word = f"good {trial.passed} of {trial.tries} times"
    note = trial.skipped or trial.note
    took = f" after {words.duration_text(trial.seconds)}" if trial.seconds >= 1 else ""
    return f"  {word}{took}{f': {note}' if note else ''}"
