"""The search as a pure function: what is known so far → the next question, or what it comes to.

It goes from the start each time: every verdict that is known is read off the trials, and the first that is missing is
the question. So there is no state but the answers: a journal of them is enough to go on after anything, and what would
be asked next is found by supposing an answer.

    ends → numbers → axes → units of each axis → points of each unit → the ends of what was found once more
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from builder.bisecting import candidate, difference, ordering, trials
from builder.bisecting.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.bisecting.candidate import BisectCandidate
    from builder.bisecting.difference import Axis, BisectSubject, Row
    from builder.bisecting.trials import Noise, Word

_NOWHERE: Mapping[str, str] = {}
_MOST_MISSES_OF_UNITS = 4
Ending = Literal["found", "good end fails", "bad end passes", "alike", "end untried", "nothing differs"]


@dataclass(frozen=True)
class TryCandidate:
    """The question how a candidate does, asked ``times`` times at least."""

    candidate: BisectCandidate
    times: int = 1


@dataclass(frozen=True)
class ListPoints:
    """The question which points a unit has between two of its own, or between its ends where those are empty."""

    old: int
    new: int
    unit: str
    after: str = ""
    before: str = ""


Question: TypeAlias = "TryCandidate | ListPoints"


@dataclass(frozen=True)
class Culprit:
    """One part of what was found: a unit, and where it has points the last ``good`` and the first ``bad`` one. Those
    ``between`` could not be tried: any of them may be it, as may ``bad``."""

    axis: str
    unit: str
    good: str = ""
    bad: str = ""
    between: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conclusion:
    """The end of a search. ``good`` and ``bad`` are the two candidates on either side, which differ in the
    ``culprits`` alone: together they make one of the other, and where ``joint``, they could not be told apart.
    ``steps`` are the candidates that it took beside the two ends, of which ``steps_on_axis`` are those that looked for
    the place on an axis."""

    ending: Ending
    good: BisectCandidate
    bad: BisectCandidate
    culprits: tuple[Culprit, ...] = ()
    joint: bool = False
    steps: int = 0
    steps_on_axis: int = 0


@dataclass(frozen=True)
class Answers:
    """All that is known: the trials, in their order, and the rows of points that were listed."""

    trials: tuple[Trial, ...] = ()
    rows: tuple[Row, ...] = field(default_factory=tuple)


class _OpenQuestion(Exception):  # noqa: N818 (a way out of the search, and no error)
    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question


def next_step(subject: BisectSubject, answers: Answers) -> Question | Conclusion:
    """The next question, or the conclusion where none is open."""
    try:
        return _Search(subject, answers).conclusion()
    except _OpenQuestion as step:
        return step.question


def likely_next(subject: BisectSubject, answers: Answers, now: TryCandidate) -> tuple[BisectCandidate, ...]:
    """The candidates that are next, whichever way ``now`` is answered: what can be prepared meanwhile."""
    ahead = []
    for passed, failed in ((0, 1), (1, 0)):
        supposed = trials.Trial(now.candidate, passed * now.times, failed * now.times)
        following = next_step(subject, Answers((*answers.trials, supposed), answers.rows))
        if isinstance(following, TryCandidate) and following.candidate != now.candidate:
            ahead.append(following.candidate)
    return tuple(dict.fromkeys(ahead))


@dataclass(frozen=True)
class _Span:
    """Two neighbouring numbers, one good and one bad, and the axes on which they differ."""

    old: int
    new: int
    axes: tuple[Axis, ...]

    @property
    def every(self) -> frozenset[str]:
        return frozenset(unit for axis in self.axes for unit in axis.units)

    def candidate(self, taken: frozenset[str], points: Mapping[str, str]) -> BisectCandidate:
        """The candidate with these units; a number where it is none but that."""
        if not taken or (taken == self.every and not points):
            return candidate.of_number(self.new if taken else self.old)
        return candidate.mixed(self.old, self.new, taken, points)


class _Search:
    """One pass over the answers."""

    def __init__(self, subject: BisectSubject, answers: Answers) -> None:
        self.subject = subject
        self.rows = {(row.unit, row.after, row.before): row for row in answers.rows}
        self.tallies = trials.tallies(answers.trials)
        first, last = (candidate.of_number(subject.numbers[place]) for place in (0, -1))
        self.first, self.last = first, last
        ends = (last, first) if subject.find_fix else (first, last)
        self.noise: Noise = trials.noise(self.tallies, *ends)
        self.tried = {trial.candidate for trial in answers.trials} - {first, last}

    def conclusion(self) -> Conclusion:
        ending = self._ending_of_ends()
        if ending:
            return self._ended(ending)
        numbers = self.subject.numbers
        step = ordering.edge(len(numbers), lambda place: self.verdict(candidate.of_number(numbers[place])))
        old, new = numbers[step.good], numbers[step.bad]
        for number in (old, new):  # everything after stands on these two
            self._require_sure(candidate.of_number(number))
        span = _Span(old, new, self.subject.axes(old, new))
        if not span.axes:
            return self._ended("nothing differs", candidate.of_number(old), candidate.of_number(new))
        chosen, joint = self._smallest(span)
        culprits, good, bad = self._located(span, chosen, joint=joint)
        for each in (good, bad):
            self._require_sure(each)
        on_axis = sum(difference.is_inside_axis(span.axes, tried) for tried in self.tried)
        return Conclusion("found", good, bad, culprits, joint, len(self.tried), on_axis)

    def _ending_of_ends(self) -> Ending | None:
        for end in (self.first, self.last):
            tally = self._tally(end)
            times = trials.lacking_of_end(tally, is_clean=self.noise.is_clean, single=self.subject.single)
            if times:
                raise _OpenQuestion(TryCandidate(end, times))
            if tally.skipped:
                return "end untried"
            wrong = tally.passed if (end == self.last) != self.subject.find_fix else tally.failed
            if wrong == tally.tries:
                return "bad end passes" if end == self.last else "good end fails"
        if not self.noise.is_clean and trials.are_alike(self.noise):
            return "alike"
        return None

    def verdict(self, tried: BisectCandidate, span: _Span | None = None) -> Word:
        """The verdict on a candidate, seen from the direction of the search: the last number's is ``bad``. Those at the
        ends of the ``span`` were told before, and stay what they are."""
        if tried == self.first or (span and tried.number == span.old):
            return "good"
        if tried == self.last or (span and tried.number == span.new):
            return "bad"
        tally = self._tally(tried)
        word = self.noise.verdict(tally)
        if word is None:
            raise _OpenQuestion(TryCandidate(tried, self.noise.lacking(tally)))
        if self.subject.find_fix and word in {"good", "bad"}:
            return "bad" if word == "good" else "good"
        return word

    def _tally(self, tried: BisectCandidate) -> Trial:
        return self.tallies.get(tried, Trial(tried))

    def _require_sure(self, tried: BisectCandidate) -> None:
        """Asks again about what all else rests on: where the answers differ, every verdict is looked at anew."""
        if not self.subject.single and (times := self.noise.lacking(self._tally(tried), pivot=True)):
            raise _OpenQuestion(TryCandidate(tried, times))

    def _smallest(self, span: _Span) -> tuple[frozenset[str], bool]:
        """The units that are enough to make the old number fail, none of which can be left out; True where some of them
        could only be tried together."""
        groups = [frozenset(axis.units) for axis in span.axes]
        chosen, joint = self._culprits(span, groups, frozenset())
        for axis in span.axes:
            inside = [frozenset({unit}) for unit in axis.units if unit in chosen]
            if len(inside) > 1:
                rest = chosen - frozenset(axis.units)
                parts, also = self._culprits(span, inside, rest)
                chosen, joint = rest | parts, joint or also
        return chosen, joint

    def _culprits(
        self, span: _Span, groups: Sequence[frozenset[str]], always: frozenset[str]
    ) -> tuple[frozenset[str], bool]:
        """The smallest union of ``groups`` that fails together with what is ``always`` taken. All of them together do,
        and ``always`` alone does not.

        The first prefix of the row that fails ends with a culprit. With that one taken, the next is looked for in front
        of it, until nothing in front is needed: a logarithm of trials for each culprit
        (QuickXplain, https://cdn.aaai.org/AAAI/2004/AAAI04-027.pdf).
        """
        taken, joint, row = always, False, list(groups)
        while row and not (taken != always and self._word(span, taken) == "bad"):
            start, end = self._first_that_fails(span, taken, row, 0)
            if end - start > 1:  # the other way round, some may be told apart
                turned = [*row[:start], *row[start:end][::-1]]
                again = self._first_that_fails(span, taken, turned, start)
                if again[1] - again[0] < end - start:
                    row, (start, end) = turned, again
            joint = joint or end - start > 1
            taken = taken.union(*row[start:end])
            row = row[:start]
        return taken - always, joint

    def _first_that_fails(
        self, span: _Span, taken: frozenset[str], row: Sequence[frozenset[str]], start: int
    ) -> tuple[int, int]:
        """The places in ``row`` around the first group with which everything in front of it fails; nothing is asked of
        the first ``start`` ones."""

        def word(place: int) -> Word:
            return self._word(span, taken.union(*row[: start + place]))

        step = ordering.edge(len(row) - start + 1, word, most_misses=_MOST_MISSES_OF_UNITS)
        return start + step.good, start + step.bad

    def _word(self, span: _Span, taken: frozenset[str], points: Mapping[str, str] = _NOWHERE) -> Word:
        """The verdict on the old number with these units of the new one."""
        if self.subject.impossible(span.old, span.new, taken):
            return "skip"
        return self.verdict(span.candidate(taken, points), span)

    def _located(
        self, span: _Span, chosen: frozenset[str], *, joint: bool
    ) -> tuple[tuple[Culprit, ...], BisectCandidate, BisectCandidate]:
        """The culprits, each at its point where it has some, and the candidates on either side of the first one."""
        sides: tuple[BisectCandidate, BisectCandidate] | None = None
        culprits = []
        for axis in span.axes:
            for unit in (unit for unit in axis.units if unit in chosen):
                culprit = self._at_point(span, chosen, Culprit(axis.name, unit))
                culprits.append(culprit)
                sides = sides or (None if joint and not culprit.good else self._sides(span, chosen, culprit))
        good, bad = sides or (span.candidate(frozenset(), {}), span.candidate(chosen, {}))
        return tuple(culprits), good, bad

    def _at_point(self, span: _Span, chosen: frozenset[str], culprit: Culprit) -> Culprit:
        """The culprit between its two nearest points; between those of a merge's own commits where it is a merge."""
        key = (culprit.unit, culprit.good, culprit.bad)
        row = self.rows.get(key)
        if row is None:
            raise _OpenQuestion(ListPoints(span.old, span.new, *key))
        if not row.points:
            return culprit
        points = row.points
        step = ordering.edge(len(points) + 2, lambda place: self._word(span, chosen, {culprit.unit: points[place - 1]}))
        good = points[step.good - 1] if step.good else culprit.good
        bad = points[step.bad - 1] if step.bad <= len(points) else culprit.bad
        between = points[step.good : step.bad - 1]
        closer = Culprit(culprit.axis, culprit.unit, good, bad, between)
        return self._at_point(span, chosen, closer) if step.is_exact else closer

    def _sides(self, span: _Span, chosen: frozenset[str], culprit: Culprit) -> tuple[BisectCandidate, BisectCandidate]:
        unit = culprit.unit
        without = span.candidate(chosen - {unit}, {})
        good = span.candidate(chosen, {unit: culprit.good}) if culprit.good else without
        return good, span.candidate(chosen, {unit: culprit.bad} if culprit.bad else {})

    def _ended(
        self, ending: Ending, good: BisectCandidate | None = None, bad: BisectCandidate | None = None
    ) -> Conclusion:
        return Conclusion(ending, good or self.first, bad or self.last, steps=len(self.tried))
