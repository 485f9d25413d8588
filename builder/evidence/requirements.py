"""A pairing can require evidence before an image serves its model.

Statistics come first, then the comparison with the serving image, the requirements, and the gate of a pointer.
Nothing is measured on this page.
Only the project's own current runs count, and the latest run decides. Runs of others and stale runs never count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from builder.base.errors import ConflictError, FileProblemsError, UsageError
from builder.definitions import configuration
from builder.definitions.configuration import NOTHING_REQUIRED, RequiredEvidence
from builder.definitions.recipe import load_recipe, recorded
from builder.evidence import standing, store, subjects
from builder.evidence.standing import RecordedRuns
from builder.numbers import pointers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.base.project import Project
    from builder.definitions.configuration import RequiredFigure
    from builder.definitions.recipe import Recipe
    from builder.evidence.records import Evidence, Figure, Finding, Kind, Subject, Verdict
    from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
    from builder.numbers.workspace import Workspace


# Two series of measurements against each other: better, worse, or no difference beyond the noise. A number is
# measured in several rounds, each with several runs, by turns with the other one. The machine differs from one round
# to the next (a start, heat, neighbours) and from one run to the next. Where rounds differ clearly more than the runs
# within them, the rounds are what was measured, and they are few; otherwise every run counts. The band is that of
# Student's t on the logarithms, so that it is a share, and rates and times are judged alike. Pure: nothing is
# measured here.

Judgement = Literal["better", "worse", "no difference"]
Direction = Literal["higher", "lower"]
Rounds: TypeAlias = Sequence[Sequence[float]]

CONFIDENCE = 0.999
"""The share of comparisons in which the true difference lies in the band: of a thousand equal pairs, one in all is told
apart, half of those as worse."""
FEWEST_ROUNDS = 3
MOST_ROUNDS = 8
NARROW = 0.05
"""The half width of a band that needs no further round: a difference of a tenth lies outside of it."""
SMALLEST = 0.02
"""The smallest difference that is told, however sure it is."""

# Rounds whose variance is larger than that of runs by this factor count as the measurements.
_UNLIKE = 2.0
_FEWEST_VALUES = 2


@dataclass(frozen=True)
class SeriesComparison:
    """The result of a comparison. ``change`` is the difference as a share of the first (-0.1: a tenth less), which lies
    between ``low`` and ``high`` with `CONFIDENCE`; ``values`` are the measurements of each side."""

    verdict: Judgement
    change: float
    low: float
    high: float
    values: tuple[int, int]

    @property
    def is_settled(self) -> bool:
        """True if a further round would hardly change the verdict."""
        return self.verdict != "no difference" or max(self.change - self.low, self.high - self.change) <= NARROW


def compare_runs(first: Rounds, second: Rounds, better: Direction, together: int = 1) -> SeriesComparison:
    """Compares the rounds of the first with those of the second. ``together`` is the number of figures that are judged
    at once: the more there are, the surer each verdict has to be.

    A verdict other than ``no difference`` takes `FEWEST_ROUNDS` rounds of each, with several runs in all, and a band
    that leaves out zero. Where a value is no positive number, nothing is told apart.
    """
    sides = [
        [[math.log(value) for value in runs if _is_usable(value)] for runs in rounds] for rounds in (first, second)
    ]
    sides = [[runs for runs in rounds if runs] for rounds in sides]
    counts = tuple(sum(map(len, rounds)) for rounds in sides)
    values = (counts[0], counts[1])
    unusable = any(not _is_usable(value) for rounds in (first, second) for runs in rounds for value in runs)
    if unusable or min(values) < _FEWEST_VALUES:
        return SeriesComparison("no difference", 0.0, -1.0, math.inf, values)
    difference = _mean(_flat(sides[1])) - _mean(_flat(sides[0]))
    error, freedom = _noise(sides)
    half = _quantile(1 - (1 - CONFIDENCE) / 2 / max(together, 1), freedom) * error
    change, low, high = (math.expm1(min(value, 700.0)) for value in (difference, difference - half, difference + half))
    rounds_each = min(len(rounds) for rounds in sides)
    is_sure = rounds_each >= FEWEST_ROUNDS and (low > 0 or high < 0) and abs(change) >= SMALLEST
    verdict: Judgement = (
        "no difference" if not is_sure else "better" if (change > 0) == (better == "higher") else "worse"
    )
    return SeriesComparison(verdict, change, low, high, values)


def spread(values: Sequence[float]) -> float:
    """The coefficient of variation of a sample; 0 of less than two values, or where they have no mean."""
    if len(values) < _FEWEST_VALUES or not (mean := math.fsum(values) / len(values)):
        return 0.0
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1)) / abs(mean)


def _is_usable(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [value for runs in rounds for value in runs]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _noise(sides: Sequence[Sequence[Sequence[float]]]) -> tuple[float, int]:
    """The standard error of the difference of the two means, and its degrees of freedom (one-way analysis of variance,
    rounds within sides)."""
    flat = [_flat(rounds) for rounds in sides]
    within = math.fsum(_squares(runs) for rounds in sides for runs in rounds)
    total = math.fsum(map(_squares, flat))
    rounds_freedom = sum(len(rounds) - 1 for rounds in sides)
    runs_freedom = sum(len(runs) - 1 for rounds in sides for runs in rounds)
    between = max(total - within, 0.0)
    if rounds_freedom and (not runs_freedom or between / rounds_freedom > _UNLIKE * within / runs_freedom):
        variance, freedom = between / rounds_freedom, rounds_freedom
    else:
        variance, freedom = total / (rounds_freedom + runs_freedom), rounds_freedom + runs_freedom
    return math.sqrt(variance * math.fsum(1 / len(values) for values in flat)), freedom


def _quantile(share: float, freedom: int) -> float:
    """The value below which ``share`` of Student's distribution lies."""
    low, high = 0.0, 1.0
    while _cumulative(high, freedom) < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _cumulative(middle, freedom) < share else (low, middle)
    return high


def _cumulative(value: float, freedom: int) -> float:
    """The share of Student's distribution below a positive value (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(value, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2
    term = total = cosine if is_odd else 1.0
    for step in range(2 + is_odd, freedom - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    odd = 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    inside = odd if is_odd else sine * total
    return (1 + inside) / 2


# A figure of an image beside that of the image that serves now: by the rounds in which both were measured in turn.
# Each benchmark is a round. Where there are rounds enough, they are told apart as `bench --compare` tells two
# numbers: what lies below the bound and may still be noise is not known yet, and what is no difference is within any
# bound. With fewer, the means of the last runs decide. Pure: nothing is measured here.

# A single sample says nothing about its spread.
LEAST_SAMPLES = 2


@dataclass(frozen=True)
class FigureBeside:
    """One figure of an image and of the current one: their means over so many ``rounds`` of each, and how they
    compare."""

    unit: str
    mean: float
    current: float
    rounds: int
    comparison: SeriesComparison

    @property
    def band(self) -> str:
        """The difference in words."""
        change, low, high = (
            f"{100 * each:+.1f}" for each in (self.comparison.change, self.comparison.low, self.comparison.high)
        )
        return f"{change} %, between {low} and {high} over {self.rounds} rounds"


def compared(
    wanted: RequiredFigure, of_image: RecordedRuns, of_current: RecordedRuns
) -> tuple[FigureBeside, ...] | str:
    """Every figure that ``wanted`` speaks of beside the current one's, or why they cannot be compared."""
    run = standing.latest_runs(of_image, "bench", lambda each: bool(standing.figures(each, wanted)))
    before = standing.latest_runs(of_current, "bench", lambda each: bool(standing.figures(each, wanted)))
    if isinstance(run, str):
        return run
    reason = before if isinstance(before, str) else incomparable(run, before)
    if reason or isinstance(before, str):
        return f"{of_current.image}, the current one, {reason}"
    sides = [
        _like(run, standing.with_figure(of_current, wanted)),
        _like(run, standing.with_figure(of_image, wanted)),
    ]
    rounds = min(MOST_ROUNDS, *map(len, sides))
    beside = []
    measured = standing.figures(run, wanted)
    for figure in measured:
        values = [[_values(each, figure) for each in side[-max(rounds, 1) :]] for side in sides]
        if any(sum(map(len, side)) < LEAST_SAMPLES for side in values):
            return f"{of_current.image}, the current one, has no such figure to compare with"
        comparison = compare_runs(values[0], values[1], "higher" if wanted.at_least else "lower", len(measured))
        means = [sum(map(sum, side)) / sum(map(len, side)) for side in values]
        beside.append(FigureBeside(figure.unit, means[1], means[0], rounds, comparison))
    return tuple(beside)


def verdict_beside(wanted: RequiredFigure, beside: FigureBeside) -> Literal["within", "outside", "unknown"]:
    """The verdict on one figure; ``unknown`` where it is outside of the bound by no more than noise, and further rounds
    would tell."""
    bound = beside.current * wanted.limit / 100
    if beside.mean >= bound if wanted.at_least else beside.mean <= bound:
        return "within"
    if beside.rounds < FEWEST_ROUNDS or beside.comparison.verdict == "worse":
        return "outside"
    return "within" if beside.comparison.is_settled else "unknown"


def needs_rounds(wanted: RequiredFigure, of_image: RecordedRuns, of_current: RecordedRuns) -> bool:
    """True while another round of both would tell more: until `FEWEST_ROUNDS`, then while the noise is too large."""
    if len(standing.with_figure(of_image, wanted)) < FEWEST_ROUNDS:
        return True
    beside = compared(wanted, of_image, of_current)
    if isinstance(beside, str):
        return False
    return any(
        each.rounds < FEWEST_ROUNDS or (each.rounds < MOST_ROUNDS and not each.comparison.is_settled) for each in beside
    )


def incomparable(run: Evidence, before: Evidence) -> str:
    """The reason why the figures of two runs cannot be compared; empty where they can."""
    if run.set != before.set or run.name != before.name:
        return f"was measured by another profile, {before.name}"
    if run.version != before.version:
        return f"was measured by {before.version}, this one by {run.version}"
    if dict(run.sampling) != dict(before.sampling):
        return "was measured with other sampling"
    then, now = before.subject.machine, run.subject.machine
    if then and now:
        # Earlier runs on arm64 do not name the processor.
        is_other = bool(then.cpu and now.cpu) and then.cpu != now.cpu
        if is_other or (then.gpu, then.gpus, then.platform) != (now.gpu, now.gpus, now.platform):
            return "was measured on another machine"
    return ""


def _like(run: Evidence, others: Sequence[Evidence]) -> list[Evidence]:
    return [each for each in others if not incomparable(run, each)]


def _values(run: Evidence, figure: Figure) -> tuple[float, ...]:
    same = (each for each in run.figures if each.name == figure.name and dict(each.at) == dict(figure.at))
    return next((each.values for each in same), ())


# The requirements of a pairing, held against what is recorded of an image: the parts that are missing, in words. Runs
# of others never count, nor do runs that are stale: of the project's own runs that belong to the image, the model and
# the recipe as they are now, the latest decides.


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
    return configuration.load_configuration(project).required_of(model).joined(of_recipe)


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
        path = recorded(project, file)
        if path is None:
            continue
        recipe = load_recipe(project, path)
        if recipe.model == model:
            return recipe
    return None


def built_from(project: Project, record: NumberedImage) -> Recipe | None:
    """The recipe that an image was built from, None where it is gone. Raises FileProblemsError where it cannot be
    read."""
    path = recorded(project, record.recipe)
    return load_recipe(project, path) if path else None


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
    runs = store.look_for_runs(project, image).runs
    if not runs:
        return "has not been run"
    served_by = recipe or recipe_of(project, lock, image, model)

    def present(kind: Kind) -> Subject:
        return subjects.present_subject(project, lock, image, model, kind, recipe=served_by, environ=environ)

    return standing.latest_runs(RecordedRuns(image, runs, present), "prove", lambda _: True)


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
    return tuple(each for each in figures if each.of_current and needs_rounds(each, *sides))


def unmet(
    wanted: RequiredEvidence, of_image: RecordedRuns, of_current: RecordedRuns | None
) -> Iterator[MissingEvidence]:
    """Each part of ``wanted`` that the runs of an image do not show, and its proof where that failed: no pointer goes
    to such an image by itself. ``of_current`` are the runs of the image that serves the model now, None where it is the
    same one, or there is none to be compared with."""
    proof = standing.latest_runs(of_image, "prove", lambda _: True)
    verdict = "" if isinstance(proof, str) else proof.verdict
    if verdict == "fail" or (wanted.prove and verdict != "pass"):
        yield _missing_run("prove", "", proof)
    for name in wanted.probes:
        run = standing.latest_runs(of_image, "probe", lambda each, name=name: each.name == name)  # type: ignore[misc]
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
        return subjects.present_subject(project, lock, image, model, kind, recipe=recipe, environ=environ)

    digests = {
        name: configuration.load_probe(project, name).digest
        for name in configuration.probe_names(project)
        if name in probes
    }
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
    run = standing.latest_runs(of_image, "bench", lambda each: bool(standing.figures(each, wanted)))
    if isinstance(run, str):
        failed = standing.latest_runs(
            of_image, "bench", lambda each: each.verdict == "fail" and not standing.figures(each, wanted)
        )
        if isinstance(failed, str):
            return MissingEvidence("bench", wanted.figure, run)
        why = f"not measured: bench {failed.name} {_verdict_words(failed)}"
        return MissingEvidence("bench", wanted.figure, why, failed=True)
    if run.verdict not in {"pass", "changed"}:
        return MissingEvidence("bench", wanted.figure, f"its run {_verdict_words(run)}", failed=run.verdict == "fail")
    figures = standing.figures(run, wanted)
    runs = standing.with_figure(of_image, wanted)
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
    beside = compared(wanted, of_image, of_current)
    if isinstance(beside, str):
        return MissingEvidence("bench", wanted.figure, beside)
    for each in beside:
        verdict = verdict_beside(wanted, each)
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


def missing_command(lacking: MissingEvidence, image: ImageName, model: str | None) -> str:
    """The command that records what is missing."""
    if lacking.kind == "prove":
        differs = lacking.failed and "differs" in lacking.why
        return f"builder prove {image}" + (f" {model}" if model else "") + (" --accept" if differs else "")
    name = f" {lacking.name}" if lacking.kind == "probe" else ""
    return f"builder {lacking.kind} {model or image}{name} --image {image}"


# The gate before a pointer moves to an image: the required evidence is there and no proof failed, or the user says
# why it moves nevertheless.

# The beginning of a note that was given with `--force`: what is paired so is never put back by itself.
FORCED = "without its evidence: "


def models_of(project: Project, lock: Lock, image: ImageName) -> tuple[str, ...]:
    """The models that an image is made for: that of the recipe that it was built from, and those that it serves."""
    record = lock.image(image)
    recipe = built_from(project, record) if record else None
    own = (recipe.model,) if recipe and recipe.model else ()
    return tuple(dict.fromkeys((*own, *lock.models_on(image))))


def refuse_note_alone(note: str, *, force: bool) -> None:
    """Raises UsageError for a note that is given without `--force`, which it is the reason of."""
    if note and not force:
        raise UsageError(
            "`--note` goes with `--force`, and says why", hint="`builder mark` notes what was observed of an image"
        )


def passed(
    workspace: Workspace, lock: Lock, image: ImageName, by_recipe: Mapping[str, Recipe | None], note: str = ""
) -> str:
    """Lets a pointer move to ``image`` for the models of ``by_recipe``, each by its recipe (None: the one on record).
    Returns the note to record: ``note``, which overrides what is missing and then says so.

    Raises ConflictError with all that is missing where there is no ``note``.
    """
    lacking = {
        model: missing(workspace.project, lock, image, model, recipe=recipe, environ=workspace.environment)
        for model, recipe in by_recipe.items()
    }
    lines = [f"  {each}; `{missing_command(each, image, model)}`" for model, parts in lacking.items() for each in parts]
    if not lines:
        return note
    if note:
        return f"{FORCED}{note}"
    names = ", ".join(model for model, parts in lacking.items() if parts)
    every = [each for parts in lacking.values() for each in parts]
    has_failed = all(each.kind == "prove" and each.failed for each in every)
    what = f"did not pass its proof for {names}" if has_failed else f"lacks what {names} requires"
    raise ConflictError(
        "\n".join([f"{image} {what}: nothing was moved", *lines]),
        hint="these commands record it; `builder pair` and `builder promote` with `--force --note TEXT` do without",
    )


def unfit(
    project: Project, environ: Mapping[str, str], lock: Lock, name: ImageName, now: ImageName, model: str | None
) -> str:
    """The reason why a step back from the image ``now`` passes over the image ``name``, empty where it does not: what
    `pointers.unfit` says, or its proof failed for ``model``, or for one of those that it is made for. Evidence or a
    recipe that cannot be read says nothing: going back has to be possible with it."""
    if reason := pointers.unfit_moves(lock, name, now):
        return reason
    try:
        for each in (model,) if model else models_of(project, lock, name):
            run = last_proof(project, lock, name, each, environ)
            if not isinstance(run, str) and run.verdict == "fail":
                return f"did not pass its proof for {each}"
    except FileProblemsError:
        return ""
    return ""


def described(workspace: Workspace, lock: Lock, name: ImageName, now: ImageName | None, model: str | None) -> str:
    """Whatever is known of an image before a pointer goes to it, in words: its mark, what `unfit` would pass over, and
    its last proof for ``model``, or for each of those that it is made for. Raises FileProblemsError as `unfit` does
    not."""
    record = lock.image(name)
    marked = record.status if record and record.status != "untested" else "unmarked"
    words = [f"{marked}: {record.note}" if record and record.note else marked]
    reason = pointers.unfit_moves(lock, name, now) if now else ""
    if reason and "marked" not in reason:
        words.append(reason)
    for each in (model,) if model else models_of(workspace.project, lock, name):
        run = last_proof(workspace.project, lock, name, each, workspace.environment)
        verdict = run if isinstance(run, str) else {"pass": "passed", "fail": "failed"}.get(run.verdict, run.verdict)
        words.append(f"its proof for {each} {verdict}")
    return ", ".join(words)


def pairing_before(project: Project, environ: Mapping[str, str], lock: Lock, model: str) -> Pairing | None:
    """The latest earlier pairing of a model with an image that may serve it: one that a rollback would go to."""
    paired = lock.models[model]
    now = paired.pairing.image
    for pairing in paired.previous:
        if pairing.status != "bad" and not unfit(project, environ, lock, pairing.image, now, model):
            return pairing
    return None


def refuse_unproven(workspace: Workspace, model: str, recipe: Recipe | None) -> None:
    """Raises ConflictError for a model that requires evidence of an image that cannot have any yet."""
    if required(workspace.project, model, recipe):
        raise ConflictError(
            f"{model} requires evidence, of which a new image has none: nothing was done",
            hint="without `--model` it gets its number; `builder pair` then says what is missing",
        )
