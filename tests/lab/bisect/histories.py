"""Made-up histories: numbers, what differs between them, and a fault somewhere in it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from builder.lab.bisect import search
from builder.lab.bisect.search import (
    Axis,
    BisectCandidate,
    BisectSubject,
    Conclusion,
    ListPoints,
    Row,
    Trial,
    TryCandidate,
)


@dataclass
class History:
    """Two neighbouring numbers among several; the last ones, from ``broken`` on, have the ``fault``: units, and the
    point from which on one has it. ``failing`` and ``passing`` are the shares of trials that fail with it and
    without."""

    axes: tuple[Axis, ...]
    fault: Mapping[str, str]
    points: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    holes: frozenset[str] = frozenset()
    together: frozenset[str] = frozenset()
    numbers: int = 2
    broken: int = 2
    failing: float = 1.0
    passing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311

    def subject(self) -> BisectSubject:
        numbers = tuple(range(1, self.numbers + 1))
        return BisectSubject(numbers, lambda old, new: self.axes, self.impossible)  # noqa: ARG005

    def impossible(self, old: int, new: int, taken: frozenset[str]) -> str:  # noqa: ARG002
        inside = self.together & taken
        return "they go together" if inside and inside != self.together else ""

    def has_fault(self, tried: BisectCandidate) -> bool:
        if tried.number is not None:
            return tried.number >= self.broken
        points = dict(tried.points)
        for unit, since in self.fault.items():
            if unit not in tried.taken:
                return False
            row = self.points.get(unit, ())
            if since and unit in points and (since not in row or row.index(points[unit]) < row.index(since)):
                return False
        return True

    def answer(self, question: TryCandidate) -> Iterator[Trial]:
        tried = question.candidate
        if self.holes & set(dict(tried.points).values()):
            yield Trial(tried, skipped="does not start")
            return
        fails = self.failing if self.has_fault(tried) else self.passing
        for _ in range(question.times):
            failed = self.random.random() < fails
            yield Trial(tried, int(not failed), int(failed))

    def row(self, question: ListPoints) -> Row:
        points = () if question.after or question.before else self.points.get(question.unit, ())
        return Row(question.unit, question.after, question.before, points)


def conclude(history: History, most: int = 4000) -> tuple[Conclusion, tuple[Trial, ...]]:
    """The conclusion, and all trials that led there. Each step starts from the answers alone."""
    trials: tuple[Trial, ...] = ()
    rows: tuple[Row, ...] = ()
    for _ in range(most):
        step = search.next_step(history.subject(), trials, rows)
        if isinstance(step, Conclusion):
            return step, trials
        if isinstance(step, ListPoints):
            rows = (*rows, history.row(step))
        else:
            trials = (*trials, *history.answer(step))
    raise AssertionError("it does not end")
