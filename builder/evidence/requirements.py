"""A pairing can require evidence before an image serves its model.

Only current runs of this project count, and the latest run decides. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from builder.base.errors import ConflictError, FileProblemsError, UsageError
from builder.base.values import dataclass, field, fields
from builder.base.words import shell_word
from builder.definitions import configuration
from builder.definitions.recipe import Recipe, load_recipe, recorded
from builder.evidence import run_record, standing, statistics
from builder.evidence.run_record import Evidence, Figure, Finding, Kind, Subject, Verdict, unlike
from builder.evidence.statistics import FEWEST_ROUNDS, PerplexityChange, SeriesComparison, compare_runs
from builder.lock.model import ImageName, Lock, Pairing
from builder.numbers import pointers

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.configuration import BenchProfile, RequiredFigure
    from builder.numbers.workspace import Workspace

LEAST_SAMPLES, MOST_ROUNDS = statistics.LEAST_SAMPLES, statistics.MOST_ROUNDS


@dataclass(frozen=True)
class RecordedRuns:
    """The runs of one image in order. ``present`` returns the present subject of a kind; ``probes`` has the present
    digests of own probes."""

    image: ImageName
    runs: Sequence[Evidence]
    present: Callable[[Kind], Subject]
    probes: Mapping[str, str] = field(default_factory=dict)

    def latest(self, kind: Kind, wanted: Callable[[Evidence], bool] = lambda _: True) -> Evidence | str:
        """The latest run that counts, or why no run counts."""
        present = self.present(kind)
        own = [run for run in self.runs if run.kind == kind and wanted(run) and run.subject.model == present.model]
        if not own:
            return "has not been run"
        set_now = self.probes.get(own[-1].name) if kind == "probe" else None
        reasons = standing.stale_reasons(own[-1], present, set_now)
        return f"is stale: {'; '.join(reasons)}" if reasons else own[-1]

    def rounds(self, wanted: RequiredFigure) -> tuple[Evidence, ...]:
        """The current benchmarks that measured ``wanted``; a failed benchmark has no comparable figures."""
        present = self.present("bench")
        own = (run for run in self.runs if run.kind == "bench" and run.subject.model == present.model)
        measured = (run for run in own if run.verdict in {"pass", "changed"} and _figures(run, wanted))
        return tuple(run for run in measured if not standing.stale_reasons(run, present))


def _figures(run: Evidence, wanted: RequiredFigure) -> list[Figure]:
    """The figures of a run that match ``wanted``; without a ``concurrency``, the figures of one request at a time."""
    return [
        figure
        for figure in run.figures
        if figure.name == wanted.name
        and (wanted.depth is None or figure.at.get("depth", 0) == wanted.depth)
        and figure.at.get("concurrency", 1) == (wanted.concurrency or 1)
    ]


# A figure of an image is compared with the current image's, over rounds in which both were measured alternately. Each
# benchmark is one round. With enough rounds, `compare_runs` decides, as in `bench --compare`: a difference within the
# noise is unknown, and no difference is within any bound. With fewer rounds, the means of the last runs decide.


@dataclass(frozen=True)
class FigureBeside:
    """The means of a figure of an image and of the current image, over this number of ``rounds`` of each."""

    unit: str
    mean: float
    current: float
    rounds: int
    comparison: SeriesComparison


def compared(
    wanted: RequiredFigure, of_image: RecordedRuns, of_current: RecordedRuns
) -> tuple[FigureBeside, ...] | str:
    """Each figure that matches ``wanted``, compared with the current image; or why they cannot be compared."""
    run, before = (side.latest("bench", lambda each: bool(_figures(each, wanted))) for side in (of_image, of_current))
    if isinstance(run, str):
        return run
    if isinstance(before, str):
        return f"the benchmark of the current image, {of_current.image}, {before}"
    if differing := ", ".join(unlike(before, run)):
        return f"the current image, {of_current.image}, cannot be compared: {differing}"
    sides = [[e for e in side.rounds(wanted) if not any(unlike(run, e))] for side in (of_current, of_image)]
    rounds = min(MOST_ROUNDS, *map(len, sides))
    beside = []
    measured = _figures(run, wanted)
    for figure in measured:
        key = (figure.name, dict(figure.at))
        values = [
            [next((f.values for f in e.figures if (f.name, dict(f.at)) == key), ()) for e in side[-max(rounds, 1) :]]
            for side in sides
        ]
        if any(sum(map(len, side)) < LEAST_SAMPLES for side in values):
            return f"the current image, {of_current.image}, has too few values of this figure to compare"
        comparison = compare_runs(values[0], values[1], "higher" if wanted.at_least else "lower", len(measured))
        means = [sum(map(sum, side)) / sum(map(len, side)) for side in values]
        beside.append(FigureBeside(figure.unit, means[1], means[0], rounds, comparison))
    return tuple(beside)


def needs_rounds(wanted: RequiredFigure, of_image: RecordedRuns, of_current: RecordedRuns) -> bool:
    """True if another round of both images is needed: up to `FEWEST_ROUNDS`, then as long as the noise is too large."""
    if len(of_image.rounds(wanted)) < FEWEST_ROUNDS:
        return True
    beside = compared(wanted, of_image, of_current)
    return not isinstance(beside, str) and any(
        each.rounds < FEWEST_ROUNDS or (each.rounds < MOST_ROUNDS and not each.comparison.is_settled) for each in beside
    )


# The requirements of a pairing, and the parts that the recorded runs of an image do not meet.


@dataclass(frozen=True)
class MissingEvidence:
    """A missing part of the required evidence: its ``kind`` and ``name``, and the reason. ``failed``: a run exists, and
    did not pass. A ``figure`` may have to be measured in turn with the image ``beside``."""

    kind: Kind
    name: str
    why: str
    failed: bool = False
    figure: RequiredFigure | None = None
    beside: ImageName | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.why}" if self.name else f"{self.kind}: {self.why}"


def required(project: Project, model: str | None, recipe: Recipe | None) -> configuration.RequiredEvidence:
    """The evidence that builder.yaml and the recipe require for a pairing. Raises FileProblemsError for a bad
    builder.yaml."""
    of_recipe = recipe.requires if recipe else configuration.NOTHING_REQUIRED
    return configuration.load_configuration(project).required_of(model).joined(of_recipe)


def recipe_of(project: Project, lock: Lock, image: ImageName, model: str | None) -> Recipe | None:
    """The recipe for an image and a model: of their pairing, or of the model's present pairing, or of the image's
    build. None if no such recipe exists. Raises FileProblemsError if a recipe cannot be read."""
    own, paired, record = standing.pairing_of(lock, image, model), lock.models.get(model or ""), lock.image(image)
    now = paired.pairing if paired else None
    for file in (own.recipe if own else None, now.recipe if now else None, record.recipe if record else None):
        path = recorded(project, file)
        recipe = load_recipe(project, path) if path else None
        if recipe and recipe.model == model:
            return recipe
    return None


def missing(
    project: Project,
    lock: Lock,
    image: ImageName,
    model: str | None,
    *,
    recipe: Recipe | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[MissingEvidence, ...]:
    """Each part of the required evidence that ``image`` lacks for ``model``, and a failed proof, required or not.
    ``recipe`` defaults to `recipe_of`. Raises FileProblemsError if a recipe, builder.yaml or a file of evidence cannot
    be read."""
    environ = environ or {}
    recipe = recipe or recipe_of(project, lock, image, model)
    wanted = required(project, model, recipe)
    paired = lock.models.get(model or "")
    now = paired.pairing.image if paired else None
    if model is None and image.repository in lock.images and (current := lock.images[image.repository].current):
        now = ImageName(image.repository, current)
    own = configuration.probe_names(project)
    digests = {name: configuration.load_probe(project, name).digest for name in wanted.probes if name in own}
    # A damaged file of evidence does not matter if no evidence is required.
    runs = run_record.of_image(project, image) if wanted else run_record.look_for_runs(project, image).runs
    of_image = _recorded(project, lock, image, model, recipe, environ, runs, digests)
    of_current = None
    if now and now != image and (wanted.same is not None or any(figure.of_current for figure in wanted.figures)):
        of_current = _recorded(project, lock, now, model, recipe, environ, run_record.of_image(project, now))
    return tuple(unmet(wanted, of_image, of_current))


def _recorded(
    project: Project,
    lock: Lock,
    image: ImageName,
    model: str | None,
    recipe: Recipe | None,
    environ: Mapping[str, str],
    runs: Sequence[Evidence],
    probes: Mapping[str, str] | None = None,
) -> RecordedRuns:
    present = partial(standing.present_subject, project, lock, image, model, recipe=recipe, environ=environ)
    return RecordedRuns(image, runs, present, probes or {})


def last_proof(
    project: Project, lock: Lock, image: ImageName, model: str | None, environ: Mapping[str, str]
) -> Evidence | str:
    """The last current proof of an image for ``model``, or why no proof counts. Unreadable files of evidence are left
    out. Raises FileProblemsError if a recipe cannot be read."""
    if not (runs := run_record.look_for_runs(project, image).runs):
        return "has not been run"
    recipe = recipe_of(project, lock, image, model)
    return _recorded(project, lock, image, model, recipe, environ, runs).latest("prove")


def figures_in_turn(
    project: Project, lock: Lock, image: ImageName, model: str, environ: Mapping[str, str]
) -> tuple[RequiredFigure, ...]:
    """The required figures that need another round of ``image`` and of the image that now serves ``model``."""
    recipe = recipe_of(project, lock, image, model)
    paired = lock.models.get(model)
    if paired is None or paired.pairing.image == image:
        return ()
    of_image, of_current = (
        _recorded(project, lock, name, model, recipe, environ, run_record.of_image(project, name))
        for name in (image, paired.pairing.image)
    )
    figures = required(project, model, recipe).figures
    return tuple(each for each in figures if each.of_current and needs_rounds(each, of_image, of_current))


def unmet(
    wanted: configuration.RequiredEvidence, of_image: RecordedRuns, of_current: RecordedRuns | None
) -> Iterator[MissingEvidence]:
    """Each part of ``wanted`` that the runs of an image do not show, and a failed proof: a pointer never moves
    automatically to such an image. ``of_current`` is None if no other image serves the model."""
    proof = of_image.latest("prove")
    verdict = _verdict(proof)
    if verdict == "fail" or (wanted.prove and verdict != "pass"):
        yield _missing_run("prove", "", proof)
    for name in wanted.probes:
        run = of_image.latest("probe", lambda each, name=name: each.name == name)  # type: ignore[misc]
        if isinstance(run, str) or run.verdict != "pass":
            yield _missing_run("probe", name, run)
    for figure in wanted.figures:
        why, failed = _unmet_figure(figure, of_image, of_current)
        if why:
            beside = of_current.image if of_current and figure.of_current else None
            yield MissingEvidence("bench", figure.figure, why, failed, figure, beside)
    if wanted.same is not None and of_current:
        why, failed = _unlike_current(wanted.same, of_image, of_current)
        if why:
            yield MissingEvidence("same", str(of_current.image), why, failed)


def _unlike_current(limit: float, of_image: RecordedRuns, of_current: RecordedRuns) -> tuple[str, bool]:
    """The reason why an image is not known to answer like the current one, and whether the two were compared."""
    fingerprint = of_current.present("same").fingerprint
    run = of_image.latest("same", lambda each: each.sampling.get("reference_fingerprint") == fingerprint)
    if isinstance(run, str):
        return run, False
    if run.counts.get("answers_differ"):
        return f"its answers differ{first_finding(run.findings, 'fail')}", True
    if run.counts.get("prompts_differ") and _verdict(of_image.latest("prove")) != "pass":
        return f"its prompts differ{first_finding(run.findings, 'changed')}, and no proof accepts the change", False
    means = {figure.name: figure.mean for figure in run.figures}
    try:
        change = PerplexityChange(*(means[f"perplexity_{each.name}"] for each in fields(PerplexityChange)))
    except KeyError as error:
        return f"its run has no figure {error}", False
    verdict = change.within(limit)
    is_alike = not run.counts.get("different") and not run.counts.get("unclear")
    if verdict == "pass" or is_alike:
        return "", False
    mean, low, high = (f"{100 * value:+.2f} %" for value in (change.change, change.low, change.high))
    shown = f"perplexity changed by {mean} (confidence interval: {low} to {high})"
    return f"{shown}; required: within {100 * limit:g} %", verdict == "fail"


def _verdict(run: Evidence | str) -> str:
    return "" if isinstance(run, str) else run.verdict


def _missing_run(kind: Kind, name: str, run: Evidence | str) -> MissingEvidence:
    if isinstance(run, str):
        return MissingEvidence(kind, name, run)
    words = {"unclear": "reached no verdict", "changed": "differs from the previous number"}
    why = words.get(run.verdict, "failed") + first_finding(run.findings, run.verdict)
    return MissingEvidence(kind, name, why, failed=run.verdict != "unclear")


def first_finding(findings: Sequence[Finding], verdict: Verdict) -> str:
    """The first check with this ``verdict``, with its place, in brackets; empty if there are no findings."""
    findings = [finding for finding in findings if finding.verdict == verdict] or findings
    if not findings:
        return ""
    more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    where = f" at {findings[0].at}" if findings[0].at else ""
    return f" ({findings[0].check}{where}{more})"


def _unmet_figure(wanted: RequiredFigure, of_image: RecordedRuns, of_current: RecordedRuns | None) -> tuple[str, bool]:
    """The reason why a required figure is not met (empty if it is met), and whether it was measured and did not
    pass."""
    run = of_image.latest("bench", lambda each: bool(_figures(each, wanted)))
    if isinstance(run, str):
        failed = of_image.latest("bench", lambda each: each.verdict == "fail" and not _figures(each, wanted))
        if isinstance(failed, str):
            return run, False
        return f"not measured: bench {failed.name} failed{first_finding(failed.findings, 'fail')}", True
    if run.verdict not in {"pass", "changed"}:
        return f"its run {_missing_run('bench', '', run).why}", run.verdict == "fail"
    figures = _figures(run, wanted)
    few = [len(each.values) for each in figures if len(each.values) < LEAST_SAMPLES]
    if few and len(of_image.rounds(wanted)) < LEAST_SAMPLES:
        return "measured only once, so the spread is unknown", False
    if not wanted.of_current:
        sign = 1 if wanted.at_least else -1
        wrong = [each for each in figures if sign * each.mean < sign * wanted.limit]
        why = f"{wrong[0].mean:.4g} {wrong[0].unit}; required: {wanted.condition}" if wrong else ""
        return why, bool(wrong)
    # Without another image, nothing serves the model yet, or this image already does.
    return _below_current(wanted, of_image, of_current) if of_current else ("", False)


def _below_current(wanted: RequiredFigure, of_image: RecordedRuns, of_current: RecordedRuns) -> tuple[str, bool]:
    comparisons = compared(wanted, of_image, of_current)
    if isinstance(comparisons, str):
        return comparisons, False
    for beside in comparisons:
        bound, band = beside.current * wanted.limit / 100, beside.comparison
        if beside.mean >= bound if wanted.at_least else beside.mean <= bound:
            continue
        is_outside = beside.rounds < FEWEST_ROUNDS or band.verdict == "worse"
        if not is_outside and band.is_settled:
            continue
        why = f"{beside.mean:.4g} {beside.unit}; required: {wanted.condition}; current image: {beside.current:.4g}"
        if beside.rounds >= FEWEST_ROUNDS:
            change, low, high = (f"{100 * share:+.1f}" for share in (band.change, band.low, band.high))
            why += f" ({change} %, between {low} and {high} over {beside.rounds} rounds)"
        # The difference from the bound is within the noise: further rounds would decide.
        return why + ("" if is_outside else ": too much noise to tell"), is_outside
    return "", False


def missing_command(
    project: Project, lock: Lock, lacking: MissingEvidence, image: ImageName, model: str, recipe: Recipe | None = None
) -> str:
    """The command that provides the missing part. PROFILE stands for a profile that builder.yaml does not have yet."""
    if lacking.kind == "prove" and lacking.failed and "differs" in lacking.why:
        return f"builder prove {image} {shell_word(model)} --accept"
    if lacking.kind == "same":
        return f"builder compare {lacking.name} {image} {shell_word(model)}"
    # Commands do not know a model that was never paired, but its recipe.
    recipe = None if model in lock.models else recipe or recipe_of(project, lock, image, model)
    served = shell_word(recipe.file if recipe else model)
    if lacking.kind == "prove":
        return f"builder prove {image} {served}"
    if lacking.figure is None:
        return f"builder probe {served} {lacking.name} --image {image}"
    images = f"--compare {lacking.beside} {image}" if lacking.beside else f"--image {image}"
    profile = next((each.name for each in suitable_profiles(project, lacking.figure)), "PROFILE")
    return f"builder bench {served} {images} --profile {profile}"


def suitable_profiles(project: Project, figure: RequiredFigure) -> tuple[BenchProfile, ...]:
    """The bench profiles that measure ``figure``, the shortest first."""

    def length(profile: BenchProfile) -> tuple[int, int]:
        runs = len(profile.pp) * len(profile.tg) * len(profile.concurrency) * profile.runs
        return runs * len(profile.depth), runs * sum(profile.depth)

    return tuple(
        profile
        for profile in sorted(configuration.load_configuration(project).bench, key=length)
        if (figure.depth is None or figure.depth in profile.depth)
        and (figure.concurrency or 1) in profile.concurrency
        and profile.runs >= LEAST_SAMPLES
    )


# A pointer moves to an image only if the required evidence exists and no proof failed, or if the user gives a reason to
# move it anyway.

FORCED = "without its evidence: "
"""The beginning of a note from `--force`. A pairing with such a note is never restored automatically."""


def models_of(project: Project, lock: Lock, image: ImageName) -> tuple[str, ...]:
    """The model of the recipe that the image was built from, and the models of its pairings. Raises
    FileProblemsError."""
    record = lock.image(image)
    path = recorded(project, record.recipe) if record else None
    model = load_recipe(project, path).model if path else None
    return tuple(dict.fromkeys((*((model,) if model else ()), *lock.models_on(image))))


def refuse_note_alone(note: str, *, force: bool) -> None:
    """Raises UsageError for a note without `--force`."""
    if note and not force:
        hint = "to note an observation: `builder mark IMAGE:N STATUS --note TEXT`"
        raise UsageError("`--note` requires `--force`, and gives the reason for it", hint=hint)


def passed(
    workspace: Workspace,
    lock: Lock,
    image: ImageName,
    by_recipe: Mapping[str, Recipe | None],
    note: str = "",
    anyway: str = "--force --note TEXT",
) -> str:
    """Checks whether a pointer may move to ``image`` for the models of ``by_recipe``, and returns the note to record.
    The value None stands for the recorded recipe. Raises ConflictError with all missing parts, unless a ``note``
    overrides them; the recorded note then says so. ``anyway`` are the options of the command that override them."""
    lacking = [
        (model, each)
        for model, recipe in by_recipe.items()
        for each in missing(workspace.project, lock, image, model, recipe=recipe, environ=workspace.environment)
    ]
    if not lacking:
        return note
    if note:
        return f"{FORCED}{note}"
    names = ", ".join(dict.fromkeys(model for model, _ in lacking))
    has_failed = all(each.kind == "prove" and each.failed for _, each in lacking)
    what = f"did not pass its proof for {names}" if has_failed else f"lacks what {names} requires"
    lines = [
        f"  {each}; `{missing_command(workspace.project, lock, each, image, model, by_recipe[model])}`"
        for model, each in lacking
    ]
    run_these = "these commands show what failed" if has_failed else "run these commands"
    hint = f"{run_these}; to move the pointer anyway, add `{anyway}`"
    raise ConflictError("\n".join([f"{image} {what}: no pointer was moved", *lines]), hint=hint)


def unfit(
    project: Project, environ: Mapping[str, str], lock: Lock, name: ImageName, now: ImageName, model: str | None
) -> str:
    """The reason why a step back from ``now`` skips the image ``name``: `pointers.unfit_reason`, or a failed proof."""
    return pointers.unfit_reason(lock, name, now) or failed_proof(project, environ, lock, name, model)


def failed_proof(project: Project, environ: Mapping[str, str], lock: Lock, name: ImageName, model: str | None) -> str:
    """The failed proof of the image ``name`` as text; empty if no proof failed. Unreadable evidence or recipes are
    ignored, because a rollback must still be possible."""
    with suppress(FileProblemsError):
        for each in (model,) if model else models_of(project, lock, name):
            if _verdict(last_proof(project, lock, name, each, environ)) == "fail":
                return f"did not pass its proof for {each}"
    return ""


def described(workspace: Workspace, lock: Lock, name: ImageName, now: ImageName | None, model: str | None) -> str:
    """Describes an image before a pointer moves to it: its mark, the reason why `unfit` would skip it, the marks of its
    models on it, and its last proofs. Raises FileProblemsError."""
    record = lock.image(name)
    marked = record.status if record and record.status != "untested" else "unmarked"
    words = [f"{marked}: {record.note}" if record and record.note else marked]
    reason = pointers.unfit_reason(lock, name, now) if now else ""
    words += [reason] if reason and "marked" not in reason else []
    for each in (model,) if model else models_of(workspace.project, lock, name):
        pairing = pointers.pairing_with(lock.models.get(each), name)
        note = f": {pairing.note}" if pairing.note else ""
        words += [f"{pairing.status} for {each}{note}"] if pairing.status != "untested" else []
        run = last_proof(workspace.project, lock, name, each, workspace.environment)
        verdicts = {"pass": "passed", "fail": "failed", "changed": "found a change", "unclear": "reached no verdict"}
        words.append(f"its proof for {each} {run if isinstance(run, str) else verdicts[run.verdict]}")
    return ", ".join(words)


def pairing_before(project: Project, environ: Mapping[str, str], lock: Lock, model: str) -> Pairing | None:
    """The latest earlier pairing of a model whose image may serve it: the target of a rollback."""
    paired = lock.models[model]
    fit = (
        each
        for each in paired.previous
        if each.status != "bad" and not unfit(project, environ, lock, each.image, paired.pairing.image, model)
    )
    return next(fit, None)


def refuse_unproven(workspace: Workspace, model: str, recipe: Recipe | None) -> None:
    """Raises ConflictError if a model requires evidence: a new image cannot have any yet."""
    if required(workspace.project, model, recipe):
        hint = "leave out `--model` to give it a number; `builder pair` then lists what is missing"
        message = f"{model} requires evidence, but a new image has no evidence yet; nothing was changed"
        raise ConflictError(message, hint=hint)
