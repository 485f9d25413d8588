"""The outcome of a measurement becomes evidence of the image that it belongs to.

The outcome comes first, then the number of repetitions, then two numbers measured in turn.
Results that differ are measured more often.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.base import words
from builder.base.errors import MeasuringError
from builder.base.events import Message, Stage
from builder.evidence import statistics
from builder.evidence.records import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.base.events import Report
    from builder.evidence.records import Figure, Finding, Kind, Subject, Verdict
    from builder.evidence.statistics import Direction, Judgement, SeriesComparison
    from builder.lock.model import ImageName


# The outcome of a measurement, and the evidence that it becomes once it is known what it belongs to.


@dataclass(frozen=True)
class Outcome:
    """A measurement of the kind ``kind``, called ``name``, by the tool ``version`` with the ``set`` (a digest); what it
    measured and found. ``raw`` is the whole output of its tool."""

    kind: Kind
    name: str
    version: str
    set: str
    started: str
    seconds: float
    verdict: Verdict
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    sampling: Mapping[str, int | float | str] = field(default_factory=dict)
    raw: bytes = b""

    def evidence(self, subject: Subject) -> Evidence:
        """The evidence of this measurement; `evidence.store` keeps it, with ``raw``."""
        return Evidence(
            kind=self.kind,
            name=self.name,
            version=self.version,
            set=self.set,
            started=self.started,
            seconds=round(self.seconds, 3),
            subject=subject,
            verdict=self.verdict,
            sampling=self.sampling,
            counts=self.counts,
            figures=self.figures,
            findings=self.findings,
        )


@dataclass(frozen=True)
class MeasuringProgress(Stage):
    """A measurement that goes on: the share that is done, and the seconds that are left, where they are known."""

    share: float
    seconds_left: float | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {words.duration_text(self.seconds_left)} left"
        return f"{self.name}: {self.share:.0%}{left}"


def verdict_of(findings: tuple[Finding, ...]) -> Verdict:
    """The verdict over all findings: the worst of theirs."""
    verdicts = {finding.verdict for finding in findings}
    return "fail" if "fail" in verdicts else "unclear" if "unclear" in verdicts else "pass"


def outcome_digest(content: Any) -> str:
    """The digest of content that JSON can hold."""
    text = json.dumps(content, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# The number of times that something is tried: as often as its results differ.

FEWEST = 4
"""Two whole and two streamed, where that is taken in turns."""
MOST = 10
_FEWEST_VALUES = 3
# The usual spread of decoding: https://github.com/eugr/llama-benchy
_SPREAD = 0.05


def needs_more(passed: Sequence[bool]) -> bool:
    """True while results do not tell enough: `FEWEST` that agree do; where some passed and some failed, `MOST` tell how
    often."""
    if len(passed) >= MOST:
        return False
    return len(passed) < FEWEST or len(set(passed)) > 1


def needs_more_values(series: Sequence[Sequence[float]]) -> bool:
    """True while one of several series of values spreads too far for its mean to be sure."""
    count = min(map(len, series), default=0)
    if not series or count >= MOST:
        return False
    return count < _FEWEST_VALUES or any(statistics.spread(values) / count**0.5 > _SPREAD / 2 for values in series)


# Two numbers measured in turn (A B A B …), so that the machine's drift counts for both, until their figures are told
# apart or known not to differ.

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


def compare_alternating(
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
        comparison = statistics.compare_runs(sides[0], sides[1], direction, len(both))
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
