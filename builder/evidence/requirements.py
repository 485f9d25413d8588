"""The requirements of a pairing, held against what is recorded of an image: the parts that are missing, in words.

Runs of others never count, nor do runs that are stale: of the project's own runs that belong to the image, the model
and the recipe as they are now, the latest decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import configuration, own_probe
from builder.definitions.recipes import finding
from builder.definitions.recipes import recipe as recipes
from builder.definitions.required_evidence import NOTHING_REQUIRED, RequiredEvidence
from builder.evidence import beside_current, recorded_runs, store, subjects
from builder.evidence.beside_current import LEAST_SAMPLES
from builder.evidence.recorded_runs import RecordedRuns
from builder.evidence.statistics import FEWEST_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.definitions.recipes.recipe import Recipe
    from builder.definitions.required_evidence import RequiredFigure
    from builder.evidence.record import Evidence, Finding, Kind, Subject, Verdict
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.project import Project


@dataclass(frozen=True)
class MissingEvidence:
    """A required part of an image's evidence that is not there: its ``kind`` and ``name`` (of a probe or a figure),
    and why in words. ``failed`` if it was looked at and did not pass, else it has yet to be."""

    kind: Kind
    name: str
    why: str
    failed: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.why}" if self.name else f"{self.kind}: {self.why}"


def required(project: Project, model: str | None, recipe: Recipe | None) -> RequiredEvidence:
    """The evidence that a pairing of ``model`` by ``recipe`` requires: all that the two files say. Raises
    FileProblemsError for a bad builder.yaml."""
    of_recipe = recipe.requires if recipe else NOTHING_REQUIRED
    return configuration.load(project).required_of(model).joined(of_recipe)


def recipe_of(project: Project, lock: Lock, image: ImageName, model: str | None) -> Recipe | None:
    """The recipe by which an image serves a model, or would: that of their pairing, else of the model's present one,
    else that which the image was built from. None where it is gone.

    Raises FileProblemsError where it cannot be read: what it requires is not known then.
    """
    paired = lock.models.get(model or "")
    own = subjects.pairing_of(lock, image, model)
    record = lock.image(image)
    candidates = (
        own.recipe if own else None,
        paired.pairing.recipe if paired else None,
        record.recipe if record else None,
    )
    for file in filter(None, candidates):
        path = finding.recorded(project, file)
        if path is None:
            continue
        recipe = recipes.load(project, path)
        if recipe.model == model:
            return recipe
    return None


def built_from(project: Project, record: NumberedImage) -> Recipe | None:
    """The recipe that an image was built from, None where it is gone. Raises FileProblemsError where it cannot be
    read."""
    path = finding.recorded(project, record.recipe)
    return recipes.load(project, path) if path else None


def missing(
    project: Project,
    lock: Lock,
    image: ImageName,
    model: str | None,
    *,
    recipe: Recipe | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[MissingEvidence, ...]:
    """Each part of the required evidence that ``image`` lacks for ``model``, and a proof that failed, required or not;
    empty where it may serve it. ``recipe`` is `recipe_of` unless given.

    Raises FileProblemsError for a recipe, a builder.yaml or a file of evidence that cannot be read.
    """
    recipe = recipe or recipe_of(project, lock, image, model)
    wanted = required(project, model, recipe)
    if not wanted:  # a damaged file of evidence is in nobody's way then
        run = last_proof(project, lock, image, model, environ or {}, recipe=recipe)
        return () if isinstance(run, str) or run.verdict != "fail" else (_missing_run("prove", "", run),)
    paired = lock.models.get(model or "")
    now = paired.pairing.image if paired else None
    if model is None:
        current = lock.images[image.repository].current if image.repository in lock.images else None
        now = type(image)(image.repository, current) if current else None
    of_image = _recorded(project, lock, image, model, recipe, environ or {}, wanted.probes)
    of_current = None
    if now and now != image and any(figure.of_current for figure in wanted.figures):
        of_current = _recorded(project, lock, now, model, recipe, environ or {})
    return tuple(unmet(wanted, of_image, of_current))


def last_proof(
    project: Project,
    lock: Lock,
    image: ImageName,
    model: str | None,
    environ: Mapping[str, str],
    *,
    recipe: Recipe | None = None,
) -> Evidence | str:
    """The last proof of an image for ``model`` that counts now, or why there is none; files of evidence that cannot be
    read are left out. ``recipe`` is `recipe_of` unless given. Raises FileProblemsError for a recipe that cannot be
    read."""
    runs = store.look(project, image).runs
    if not runs:
        return "has not been run"
    served_by = recipe or recipe_of(project, lock, image, model)

    def present(kind: Kind) -> Subject:
        return subjects.present(project, lock, image, model, kind, recipe=served_by, environ=environ)

    return recorded_runs.latest(RecordedRuns(image, runs, present), "prove", lambda _: True)


def figures_in_turn(
    project: Project, lock: Lock, image: ImageName, model: str, environ: Mapping[str, str]
) -> tuple[RequiredFigure, ...]:
    """The required figures of which another round tells more, of ``image`` and of the one that serves ``model`` now,
    beside which they are to be."""
    recipe = recipe_of(project, lock, image, model)
    paired = lock.models.get(model)
    if paired is None or paired.pairing.image == image:
        return ()
    sides = [_recorded(project, lock, name, model, recipe, environ) for name in (image, paired.pairing.image)]
    figures = required(project, model, recipe).figures
    return tuple(each for each in figures if each.of_current and beside_current.needs_rounds(each, *sides))


def unmet(
    wanted: RequiredEvidence, of_image: RecordedRuns, of_current: RecordedRuns | None
) -> Iterator[MissingEvidence]:
    """Each part of ``wanted`` that the runs of an image do not show, and its proof where that failed: no pointer goes
    to such an image by itself. ``of_current`` are the runs of the image that serves the model now, None where it is the
    same one, or there is none to be compared with."""
    proof = recorded_runs.latest(of_image, "prove", lambda _: True)
    verdict = "" if isinstance(proof, str) else proof.verdict
    if verdict == "fail" or (wanted.prove and verdict != "pass"):
        yield _missing_run("prove", "", proof)
    for name in wanted.probes:
        run = recorded_runs.latest(of_image, "probe", lambda each, name=name: each.name == name)  # type: ignore[misc]
        if isinstance(run, str) or run.verdict != "pass":
            yield _missing_run("probe", name, run)
    for figure in wanted.figures:
        if problem := _unmet_figure(figure, of_image, of_current):
            yield problem


def _recorded(
    project: Project,
    lock: Lock,
    image: ImageName,
    model: str | None,
    recipe: Recipe | None,
    environ: Mapping[str, str],
    probes: Sequence[str] = (),
) -> RecordedRuns:
    def present(kind: Kind) -> Subject:
        return subjects.present(project, lock, image, model, kind, recipe=recipe, environ=environ)

    digests = {name: own_probe.load(project, name).digest for name in own_probe.names(project) if name in probes}
    return RecordedRuns(image, store.of_image(project, image), present, digests)


def _missing_run(kind: Kind, name: str, run: Evidence | str) -> MissingEvidence:
    if isinstance(run, str):
        return MissingEvidence(kind, name, run)
    if run.verdict == "unclear":
        return MissingEvidence(kind, name, f"came to no verdict{first_finding(run.findings, run.verdict)}")
    word = "differs from the number before" if run.verdict == "changed" else "failed"
    return MissingEvidence(kind, name, f"{word}{first_finding(run.findings, run.verdict)}", failed=True)


def first_finding(findings: Sequence[Finding], verdict: Verdict) -> str:
    """The first check that led to a ``verdict``, with its place, in brackets; empty where there are no findings."""
    findings = [finding for finding in findings if finding.verdict == verdict] or findings
    if not findings:
        return ""
    more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    where = f" at {findings[0].at}" if findings[0].at else ""
    return f" ({findings[0].check}{where}{more})"


def _unmet_figure(
    wanted: RequiredFigure, of_image: RecordedRuns, of_current: RecordedRuns | None
) -> MissingEvidence | None:
    run = recorded_runs.latest(of_image, "bench", lambda each: bool(recorded_runs.figures(each, wanted)))
    if isinstance(run, str):
        failed = recorded_runs.latest(
            of_image, "bench", lambda each: each.verdict == "fail" and not recorded_runs.figures(each, wanted)
        )
        if isinstance(failed, str):
            return MissingEvidence("bench", wanted.figure, run)
        why = f"not measured: bench {failed.name} {_verdict_words(failed)}"
        return MissingEvidence("bench", wanted.figure, why, failed=True)
    if run.verdict not in {"pass", "changed"}:
        return MissingEvidence("bench", wanted.figure, f"its run {_verdict_words(run)}", failed=run.verdict == "fail")
    figures = recorded_runs.figures(run, wanted)
    runs = recorded_runs.with_figure(of_image, wanted)
    if len(runs) < LEAST_SAMPLES and (few := [each for each in figures if len(each.values) < LEAST_SAMPLES]):
        return MissingEvidence("bench", wanted.figure, f"measured {len(few[0].values)} time, which tells no spread")
    if wanted.of_current:  # no limit where nothing serves the model yet, or this very image does
        return _below_current(wanted, of_image, of_current) if of_current else None
    wrong = [figure for figure in figures if not _within(figure.mean, wanted)]
    if not wrong:
        return None
    why = f"{wrong[0].mean:.4g} {wrong[0].unit}, required is {wanted.condition}"
    return MissingEvidence("bench", wanted.figure, why, failed=True)


def _below_current(wanted: RequiredFigure, of_image: RecordedRuns, of_current: RecordedRuns) -> MissingEvidence | None:
    beside = beside_current.compared(wanted, of_image, of_current)
    if isinstance(beside, str):
        return MissingEvidence("bench", wanted.figure, beside)
    for each in beside:
        verdict = beside_current.verdict(wanted, each)
        if verdict == "within":
            continue
        why = f"{each.mean:.4g} {each.unit}, required is {wanted.condition}, which is at {each.current:.4g}"
        if each.rounds >= FEWEST_ROUNDS:
            why += f" ({each.band})"
        if verdict == "unknown":
            why += ": too much noise to tell"
        return MissingEvidence("bench", wanted.figure, why, failed=verdict == "outside")
    return None


def _verdict_words(run: Evidence) -> str:
    word = "failed" if run.verdict == "fail" else "came to no verdict"
    return f"{word}{first_finding(run.findings, run.verdict)}"


def _within(mean: float, wanted: RequiredFigure) -> bool:
    return mean >= wanted.limit if wanted.at_least else mean <= wanted.limit


def command(lacking: MissingEvidence, image: ImageName, model: str | None) -> str:
    """The command that records what is missing."""
    if lacking.kind == "prove":
        differs = lacking.failed and "differs" in lacking.why
        return f"builder prove {image}" + (f" {model}" if model else "") + (" --accept" if differs else "")
    name = f" {lacking.name}" if lacking.kind == "probe" else ""
    return f"builder {lacking.kind} {model or image}{name} --image {image}"
