"""A figure of an image beside that of the image that serves now: by the rounds in which both were measured in turn.

Each benchmark is a round. Where there are rounds enough, they are told apart as `bench --compare` tells two numbers:
what lies below the bound and may still be noise is not known yet, and what is no difference is within any bound. With
fewer, the means of the last runs decide.

Pure: nothing is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.evidence import recorded_runs, statistics
from builder.evidence.statistics import FEWEST_ROUNDS, MOST_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.definitions.required_evidence import RequiredFigure
    from builder.evidence.record import Evidence, Figure
    from builder.evidence.recorded_runs import RecordedRuns
    from builder.evidence.statistics import SeriesComparison

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
    run = recorded_runs.latest(of_image, "bench", lambda each: bool(recorded_runs.figures(each, wanted)))
    before = recorded_runs.latest(of_current, "bench", lambda each: bool(recorded_runs.figures(each, wanted)))
    if isinstance(run, str):
        return run
    reason = before if isinstance(before, str) else incomparable(run, before)
    if reason or isinstance(before, str):
        return f"{of_current.image}, the current one, {reason}"
    sides = [
        _like(run, recorded_runs.with_figure(of_current, wanted)),
        _like(run, recorded_runs.with_figure(of_image, wanted)),
    ]
    rounds = min(MOST_ROUNDS, *map(len, sides))
    beside = []
    measured = recorded_runs.figures(run, wanted)
    for figure in measured:
        values = [[_values(each, figure) for each in side[-max(rounds, 1) :]] for side in sides]
        if any(sum(map(len, side)) < LEAST_SAMPLES for side in values):
            return f"{of_current.image}, the current one, has no such figure to compare with"
        comparison = statistics.compare(values[0], values[1], "higher" if wanted.at_least else "lower", len(measured))
        means = [sum(map(sum, side)) / sum(map(len, side)) for side in values]
        beside.append(FigureBeside(figure.unit, means[1], means[0], rounds, comparison))
    return tuple(beside)


def verdict(wanted: RequiredFigure, beside: FigureBeside) -> Literal["within", "outside", "unknown"]:
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
    if len(recorded_runs.with_figure(of_image, wanted)) < FEWEST_ROUNDS:
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
