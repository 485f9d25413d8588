"""The outcome of a measurement, which becomes evidence of the measured image."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from builder.base import words
from builder.base.errors import MeasuringError
from builder.base.events import Message, Report, Stage
from builder.base.values import dataclass, field
from builder.evidence import statistics
from builder.evidence.run_record import Evidence, Figure, Finding, Kind, Subject, Verdict

if TYPE_CHECKING:
    from builder.evidence.statistics import Direction, Judgement, SeriesComparison
    from builder.lock.model import ImageName
    from builder.serving.server_log import ChoiceChange


@dataclass(frozen=True)
class Outcome:
    """A measurement with the tool ``version``; ``set`` is the digest of its protocol. ``raw`` is the tool's whole
    output."""

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
        parts = {name: value for name, value in vars(self).items() if name != "raw"}
        return Evidence(**{**parts, "subject": subject, "seconds": round(self.seconds, 3)})


@dataclass(frozen=True)
class MeasuringProgress(Stage):
    """The completed share, and the remaining seconds, if known."""

    share: float
    seconds_left: float | None

    @classmethod
    def since(cls, name: str, share: float, began: float | None) -> MeasuringProgress:
        """The progress of a measurement that ``began`` at this time of the monotonic clock."""
        passed = time.monotonic() - began if began is not None else 0.0
        return cls(name, share, passed * (1 - share) / share if share and began is not None else None)

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {words.duration_text(self.seconds_left)} left"
        return f"{self.name}: {self.share:.0%}{left}"


def verdict_of(findings: tuple[Finding, ...]) -> Verdict:
    verdicts = {finding.verdict for finding in findings}
    return "fail" if "fail" in verdicts else "unclear" if "unclear" in verdicts else "pass"


def outcome_digest(content: Any) -> str:
    return words.sha256_of(json.dumps(content, sort_keys=True).encode())


# Two numbers are measured alternately (A B A B …), so that drift of the machine affects both, until their figures
# clearly differ or clearly do not.

# These figures decide. Other figures are less reliable: the prefill rate is a quotient of two short times, and memory
# has one value per start.
JUDGED = ("tg", "ttft")


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of two numbers, and how the second compares with the first."""

    name: str
    at: Mapping[str, int | str]
    unit: str
    means: tuple[float, float]
    comparison: SeriesComparison


@dataclass(frozen=True)
class ComparedNumbers:
    """The comparison of ``second`` with ``first``. ``failures`` says which of them failed, and how. ``chosen`` has the
    settings that vLLM chose differently for the second."""

    first: ImageName
    second: ImageName
    rounds: int
    judgement: Judgement
    figures: tuple[ComparedFigure, ...]
    failures: tuple[str, ...]
    chosen: tuple[ChoiceChange, ...] = ()


def compare_alternating(
    first: ImageName, second: ImageName, measure: Callable[[ImageName], Outcome], report: Report
) -> ComparedNumbers:
    """Measures the two alternately, at most `statistics.MOST_ROUNDS` times each. The comparison ends if a server fails;
    if only the second failed, it is worse. Raises MeasuringError if they have no common figure."""
    outcomes: tuple[list[Outcome], list[Outcome]] = ([], [])
    compared: tuple[ComparedFigure, ...] = ()
    for number in range(1, statistics.MOST_ROUNDS + 1):
        for side, image in zip(outcomes, (first, second), strict=True):
            report(Message(f"round {number}: {image}"))
            side.append(measure(image))
        failed = [side[-1].verdict == "fail" for side in outcomes]
        if any(failed):
            failures = tuple(
                f"{image}: {finding.text}"
                for image, side in zip((first, second), outcomes, strict=True)
                for finding in side[-1].findings
                if side[-1].verdict == finding.verdict == "fail"
            )
            judgement: Judgement = "worse" if failed == [False, True] else "no difference"
            return ComparedNumbers(first, second, number, judgement, compared, failures)
        compared = _compared(outcomes)
        if not compared:
            raise MeasuringError(f"{first} and {second} have no figure in common that each round measured")
        if number >= statistics.FEWEST_ROUNDS and all(figure.comparison.is_settled for figure in compared):
            break
    verdicts = {figure.comparison.verdict for figure in compared}
    overall: Judgement = "worse" if "worse" in verdicts else "better" if "better" in verdicts else "no difference"
    return ComparedNumbers(first, second, len(outcomes[0]), overall, compared, ())


def _compared(outcomes: tuple[list[Outcome], list[Outcome]]) -> tuple[ComparedFigure, ...]:
    firsts, seconds = (_rounds(side) for side in outcomes)
    both = [key for key in firsts if len(firsts[key]) == len(seconds.get(key, ())) == len(outcomes[0])]
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
    rounds: dict[str, list[Figure]] = {}
    for figure in (figure for outcome in outcomes for figure in outcome.figures):
        if figure.name in JUDGED and figure.values:
            rounds.setdefault(json.dumps([figure.name, dict(figure.at)], sort_keys=True), []).append(figure)
    return rounds
