"""Two numbers measured in turn (A B A B …), so that the machine's drift counts for both, until their figures are told
apart or known not to differ."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import MeasuringError
from builder.events import Message
from builder.evidence import statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from builder.events import Report
    from builder.evidence.record import Figure
    from builder.evidence.statistics import Direction, Judgement, SeriesComparison
    from builder.lock.model import ImageName
    from builder.measuring.outcome import Outcome

# What decides: generating, and the time until it begins, in which the prompt is read. Of the others a rate of reading
# is the quotient of two small times, and memory has one value a start.
JUDGED = ("tg", "ttft")


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of the two: its name and conditions, and how the second compares with the first."""

    name: str
    at: Mapping[str, int | str]
    unit: str
    means: tuple[float, float]
    comparison: SeriesComparison


@dataclass(frozen=True)
class ComparedNumbers:
    """The comparison of ``second`` with ``first`` over so many ``rounds`` of each. ``failures`` say which of them
    failed while it was measured, and how."""

    first: ImageName
    second: ImageName
    rounds: int
    judgement: Judgement
    figures: tuple[ComparedFigure, ...]
    failures: tuple[str, ...]


def compare(
    first: ImageName,
    second: ImageName,
    measure: Callable[[ImageName], Outcome],
    report: Report,
) -> ComparedNumbers:
    """Measures the two in turn, `statistics.MOST_ROUNDS` times each at most. One whose server fails is no further
    measured: the second is then worse, or the first was no measure. Raises MeasuringError where the two have no figure
    in common."""
    outcomes: tuple[list[Outcome], list[Outcome]] = ([], [])
    compared: tuple[ComparedFigure, ...] = ()
    for number in range(statistics.MOST_ROUNDS):
        for side, image in enumerate((first, second)):
            report(Message(f"round {number + 1}: {image}"))
            outcomes[side].append(measure(image))
        if failures := _failures((first, second), outcomes):
            is_worse = bool(_failed(outcomes[1])) and not _failed(outcomes[0])
            judgement: Judgement = "worse" if is_worse else "no difference"
            return ComparedNumbers(first, second, number + 1, judgement, compared, failures)
        compared = _compared(outcomes)
        if not compared:
            raise MeasuringError(f"{first} and {second} have no figure in common that each round measured")
        if number + 1 >= statistics.FEWEST_ROUNDS and all(figure.comparison.is_settled for figure in compared):
            break
    return ComparedNumbers(first, second, len(outcomes[0]), overall(compared), compared, ())


def overall(figures: Sequence[ComparedFigure]) -> Judgement:
    """The judgement over all figures: worse if one is, whatever the others are."""
    verdicts = {figure.comparison.verdict for figure in figures}
    return "worse" if "worse" in verdicts else "better" if "better" in verdicts else "no difference"


def _compared(outcomes: tuple[list[Outcome], list[Outcome]]) -> tuple[ComparedFigure, ...]:
    firsts, seconds = (_rounds(side) for side in outcomes)
    both = [key for key in firsts if key in seconds and len(firsts[key]) == len(seconds[key]) == len(outcomes[0])]
    result = []
    for key in both:
        figure = firsts[key][0]
        direction: Direction = "lower" if figure.better == "lower" else "higher"
        sides = [[each.values for each in side[key]] for side in (firsts, seconds)]
        comparison = statistics.compare(sides[0], sides[1], direction, len(both))
        means = tuple(sum(map(sum, side)) / max(sum(map(len, side)), 1) for side in sides)
        result.append(ComparedFigure(figure.name, figure.at, figure.unit, (means[0], means[1]), comparison))
    return tuple(result)


def _rounds(outcomes: Sequence[Outcome]) -> dict[str, list[Figure]]:
    """The judged figures of one side by their name and conditions, a figure for each round."""
    rounds: defaultdict[str, list[Figure]] = defaultdict(list)
    for outcome in outcomes:
        for figure in outcome.figures:
            if figure.name in JUDGED and figure.values:
                rounds[json.dumps([figure.name, dict(figure.at)], sort_keys=True)].append(figure)
    return rounds


def _failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.verdict == "fail"]


def _failures(images: Sequence[ImageName], outcomes: Sequence[Sequence[Outcome]]) -> tuple[str, ...]:
    return tuple(
        f"{image}: {finding.text}"
        for image, side in zip(images, outcomes, strict=True)
        for outcome in _failed(side)
        for finding in outcome.findings
        if finding.verdict == "fail"
    )
