"""The search for a culprit is a pure function from all known answers to the next question.

The search starts again from all answers each time, and has no other state. So a journal of the answers is enough to
continue a bisection, and assumed answers show the steps ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from builder.base.records import Journal, RecordError
from builder.base.values import dataclass, replace
from builder.lock import checking
from builder.lock.model import ImageName

if TYPE_CHECKING:
    from builder.base.project import Project


# A commit or a version in a journal.
PointText: TypeAlias = Annotated[str, checking.pattern("version")]


@dataclass(frozen=True)
class Axis:
    """One kind of difference between two numbers: the base image, vLLM, the Python packages, a mod, the template, the
    flags of the recipe. Each of its ``units``, in a fixed order, can come from either number. Names of units are
    unique."""

    name: str
    units: tuple[str, ...]


@dataclass(frozen=True, order=True)
class BisectCandidate:
    """The number ``old`` with the units ``taken`` from ``new``. ``point`` sets one of these units to a commit or
    version between the two numbers. If the candidate is a number, ``old`` and ``new`` are equal."""

    old: int
    new: int
    taken: tuple[str, ...] = ()
    point: tuple[str, PointText] | None = None

    @property
    def number(self) -> int | None:
        """The number of the candidate; None if it must be built."""
        return self.old if self.old == self.new else None


def of_number(number: int) -> BisectCandidate:
    return BisectCandidate(number, number)


def mixed(old: int, new: int, taken: frozenset[str], point: tuple[str, str] | None = None) -> BisectCandidate:
    """The candidate of these parts. Their order is fixed, so equal candidates compare equal."""
    return BisectCandidate(old, new, tuple(sorted(taken)), point)


# Bisection: the first bad place in a row, some places of which cannot be tried.

Word = Literal["good", "bad", "skip", "unclear"]
_MOST_MISSES, _MOST_MISSES_OF_UNITS = 40, 4


def edge(count: int, verdict: Callable[[int], Word], most_misses: int = _MOST_MISSES) -> tuple[int, int]:
    """The last good and the first bad of the places 0 to ``count`` - 1; the first place is good and the last one bad.
    Places between the two results have no verdict, or are untried because ``most_misses`` places in a row had none.

    The next place to try is the middle. Places that cannot be tried often form a run, so each miss doubles the distance
    from the middle, to both sides alternately: a long run costs a few misses, and the halves stay nearly equal."""
    good, bad, misses = 0, count - 1, 0
    left = list(range(1, bad))
    while left and misses < most_misses:
        middle = len(left) // 2
        away = (1 << min(misses, 30)) - 1
        if away > middle // 2:
            away = 0
        place = left[middle + (away if misses % 2 else -away)]
        word = verdict(place)
        misses = 0 if word in {"good", "bad"} else misses + 1
        if word == "good":
            good = place
        elif word == "bad":
            bad = place
        left = [other for other in left if good < other < bad and other != place]
    return good, bad


# Verdicts from trials: a probe may pass or fail by chance. If no candidate gave two different answers, one trial is a
# verdict. Otherwise the two ends are tried `_MOST_OF_ENDS` times. Their shares of failures decide how many trials other
# candidates need. This is Wald's sequential test, until one side is a hundred times as likely as the other
# (https://en.wikipedia.org/wiki/Sequential_probability_ratio_test).

_FEWEST_OF_ENDS, _MOST_OF_ENDS = 3, 12
_MOST, _MOST_AT_ONCE = 40, 6
_SURE, _VERY_SURE = math.log(100), math.log(10_000)
# If the ends' shares of failures differ by less, the trials of one night cannot distinguish them.
_LEAST_DIFFERENCE = 0.25


@dataclass(frozen=True)
class Trial:
    """The result of one or all trials of a candidate: how often it ``passed`` and ``failed``. ``skipped`` says why it
    could not be tried; ``note`` is the judge's text."""

    candidate: BisectCandidate
    passed: int = 0
    failed: int = 0
    skipped: str = ""
    seconds: float = 0.0
    note: str = ""

    @property
    def tries(self) -> int:
        return self.passed + self.failed


class _Noise:
    """The noise of all trials: how often each candidate passed and failed, and the shares of failures at the two ends.
    ``is_clean`` is true if no candidate gave two different answers."""

    def __init__(self, trials: Iterable[Trial], passing: BisectCandidate, failing: BisectCandidate) -> None:
        self.sums: dict[BisectCandidate, Trial] = {}
        for trial in trials:
            own = self.tally(trial.candidate)
            passed, failed = own.passed + trial.passed, own.failed + trial.failed
            self.sums[trial.candidate] = Trial(trial.candidate, passed, failed, own.skipped or trial.skipped)
        self.is_clean = not any(tally.passed and tally.failed for tally in self.sums.values())
        # Shifted slightly towards one half: a few trials never prove that something is impossible.
        ends = (self.tally(passing), self.tally(failing))
        self.passing, self.failing = ((end.failed + 0.5) / (end.tries + 1) for end in ends)

    def tally(self, candidate: BisectCandidate) -> Trial:
        """All trials of a candidate, added up."""
        return self.sums.get(candidate, Trial(candidate))

    def verdict(self, tally: Trial) -> Word:
        """The verdict of these trials, if they are enough."""
        if tally.skipped:
            return "skip"
        odds = self._odds(tally.passed, tally.failed)
        if abs(odds) < _SURE and not self.is_clean:
            return "unclear"
        return "bad" if odds > 0 else "good"

    def missing(self, tally: Trial, *, pivot: bool = False) -> int:
        """The number of further trials that a verdict needs, if they agree with the trials so far. A ``pivot`` needs
        more: the last good and the first bad candidate, on which the result depends. A wrong verdict elsewhere leads
        the search to itself, so only pivots are checked twice."""
        if tally.tries >= _MOST or tally.skipped:
            return 0
        if self.is_clean:
            return max(0, (_FEWEST_OF_ENDS if pivot else 1) - tally.tries)
        odds = self._odds(tally.passed, tally.failed)
        distance = (_VERY_SURE if pivot else _SURE) - abs(odds)
        step = abs(self._odds(0, 1) if odds > 0 else self._odds(1, 0))
        return max(0, min(math.ceil(distance / step), _MOST_AT_ONCE, _MOST - tally.tries))

    def _odds(self, passed: int, failed: int) -> float:
        """The logarithm of the likelihood ratio of these trials, with the fault to without it."""
        odds = failed * math.log(self.failing / self.passing)
        return odds + passed * math.log((1 - self.failing) / (1 - self.passing))


# A bisection is data: the user's request and all results so far, written to a journal after each answer. The journal is
# untrusted, so it contains only names of candidates and verdicts. The judge, the recipe and the options of the model's
# server come from the repeated command, from recipes/ and from the engine.

JudgeKind = Literal["script", "probe", "prove", "same", "user"]


@dataclass(frozen=True)
class Judge:
    """The judge of candidates: a ``script``, a ``probe``, the proof of templates and parsers (``prove``), the ``same``
    answers as the first number, or the ``user``. ``name`` is the script's path or the probe's name. The journal
    contains only its digest, because the writer of a journal must not choose a program."""

    kind: JudgeKind
    name: Annotated[str, "(?:[0-9a-f]{64})?"] = ""

    @property
    def is_steady(self) -> bool:
        """True if the judge never gives two different answers for one image."""
        return self.kind in {"prove", "same", "user"}

    @property
    def recorded(self) -> Judge:
        """The judge as recorded in the journal, to compare it with the judge of a repeated command."""
        return replace(self, name=sha256(self.name.encode()).hexdigest() if self.name else "")


@dataclass(frozen=True)
class Row:
    """The points of a unit between two other points, in order: commits or versions. ``after`` and ``before`` are empty
    for the ends of the unit."""

    unit: str
    after: str
    before: str
    points: tuple[PointText, ...]


@dataclass(frozen=True)
class Bisection:
    """The state of a bisection. ``target`` is the model, recipe or definition as typed. ``numbers`` are numbers of
    ``repository``, from the good end to the bad end. ``served`` is True if the model's own server ran at the beginning.
    ``waiting`` is the candidate that the user is judging."""

    target: str
    repository: Annotated[str, checking.pattern("repository")]
    numbers: tuple[int, ...]
    judge: Judge
    started: str
    served: bool = False
    done: tuple[Trial, ...] = ()
    rows: tuple[Row, ...] = ()
    waiting: BisectCandidate | None = None

    def __post_init__(self) -> None:
        if len(self.numbers) < 2:
            raise RecordError("expected two or more numbers", ("numbers",))

    @property
    def ends(self) -> tuple[ImageName, ImageName]:
        """The good end and the bad end."""
        return ImageName(self.repository, self.numbers[0]), ImageName(self.repository, self.numbers[-1])


# The search: ends → numbers → axes → units of the axis → points of the unit → both sides again. Axes and units are
# taken from the new number one after the other, cheapest change first. The unit at which the verdict changes is the
# culprit. Known verdicts come from the trials; the first missing verdict is the next question.

Ending = Literal["found", "good end fails", "bad end passes", "alike", "end untried", "nothing differs"]


@dataclass(frozen=True)
class TryCandidate:
    """A question: is the candidate good? It needs at least ``times`` trials."""

    candidate: BisectCandidate
    times: int = 1


@dataclass(frozen=True)
class ListPoints:
    """A question: which points does the unit have between ``after`` and ``before``, or between its ends if these are
    empty?"""

    old: int
    new: int
    unit: str
    after: str = ""
    before: str = ""


Question: TypeAlias = "TryCandidate | ListPoints"
AxesBetween: TypeAlias = Callable[[int, int], tuple[Axis, ...]]
IsImpossible: TypeAlias = Callable[[int, int, frozenset[str]], bool]


@dataclass(frozen=True)
class Culprit:
    """A unit, and the last ``good`` and the first ``bad`` of its points, if it has points. The points ``between`` could
    not be tried: each of them, or ``bad``, may be the culprit."""

    axis: str
    unit: str
    good: str = ""
    bad: str = ""
    between: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conclusion:
    """The result of a search. The only differences between the candidates ``good`` and ``bad`` are the ``culprits``:
    one, or several that could not be separated. ``steps`` counts the candidates without the two ends."""

    ending: Ending
    good: BisectCandidate
    bad: BisectCandidate
    culprits: tuple[Culprit, ...] = ()
    steps: int = 0


class _OpenQuestion(Exception):  # noqa: N818 (a way out of the search, and no error)
    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question


def next_step(bisection: Bisection, axes: AxesBetween, is_impossible: IsImpossible) -> Question | Conclusion:
    """The next question after the answers so far, or the conclusion if no question is open. ``axes`` returns the axes
    between two neighbouring numbers, cheapest change first. ``is_impossible`` is true if the first number cannot have
    these units of the second number, such as a FlashInfer that its vLLM does not accept."""
    try:
        return _Search(bisection, axes, is_impossible).conclusion()
    except _OpenQuestion as step:
        return step.question


class _Search:
    """One pass over the answers. ``old`` is the nearest known good number, ``new`` the nearest known bad number, and
    ``axes`` are their differences."""

    def __init__(self, bisection: Bisection, axes_between: AxesBetween, is_impossible: IsImpossible) -> None:
        self.numbers, self.is_steady = bisection.numbers, bisection.judge.is_steady
        self.axes_between, self.is_impossible = axes_between, is_impossible
        self.rows = {(row.unit, row.after, row.before): row.points for row in bisection.rows}
        self.old, self.new = self.numbers[0], self.numbers[-1]
        self.axes: tuple[Axis, ...] = ()
        self.first, self.last = of_number(self.old), of_number(self.new)
        self.noise = _Noise(bisection.done, self.first, self.last)
        self.tried = self.noise.sums.keys() - {self.first, self.last}

    def conclusion(self) -> Conclusion:
        if ending := self._ending_of_ends():
            return Conclusion(ending, self.first, self.last, steps=len(self.tried))
        good, bad = edge(len(self.numbers), lambda place: self._verdict(of_number(self.numbers[place])))
        self.old, self.new = self.numbers[good], self.numbers[bad]
        old, new = of_number(self.old), of_number(self.new)
        for each in (old, new):  # all further results depend on these two
            self._require_sure(each)
        self.axes = self.axes_between(self.old, self.new)
        if not self.axes:
            return Conclusion("nothing differs", old, new, steps=len(self.tried))
        before, between = self._flip(frozenset(), [frozenset(axis.units) for axis in self.axes])
        if any(len(group) > 1 for group in between):
            inside = frozenset().union(*between)
            units = (unit for axis in self.axes for unit in axis.units if unit in inside)
            before, between = self._flip(before, [frozenset({unit}) for unit in units])
        culprits, *sides = self._located(before, before.union(*between))
        for each in sides:
            self._require_sure(each)
        return Conclusion("found", sides[0], sides[1], culprits, len(self.tried))

    def _ending_of_ends(self) -> Ending | None:
        wanted = 1 if self.is_steady else _FEWEST_OF_ENDS if self.noise.is_clean else _MOST_OF_ENDS
        for end in (self.first, self.last):
            tally = self.noise.tally(end)
            if tally.skipped:
                return "end untried"
            if tally.tries < wanted:
                raise _OpenQuestion(TryCandidate(end, wanted - tally.tries))
            if tally.tries == (tally.passed if end == self.last else tally.failed):
                return "bad end passes" if end == self.last else "good end fails"
        is_alike = not self.noise.is_clean and self.noise.failing - self.noise.passing < _LEAST_DIFFERENCE
        return "alike" if is_alike else None

    def _verdict(self, tried: BisectCandidate) -> Word:
        if tried.number in {self.old, self.new}:
            return "good" if tried.number == self.old else "bad"
        tally = self.noise.tally(tried)
        if times := self.noise.missing(tally):
            raise _OpenQuestion(TryCandidate(tried, times))
        return self.noise.verdict(tally)

    def _require_sure(self, tried: BisectCandidate) -> None:
        """Asks again about a candidate on which the result depends."""
        if not self.is_steady and (times := self.noise.missing(self.noise.tally(tried), pivot=True)):
            raise _OpenQuestion(TryCandidate(tried, times))

    def _candidate(self, taken: frozenset[str], point: tuple[str, str] | None = None) -> BisectCandidate:
        """The candidate with these units, as a number if it is equal to one."""
        if not taken:
            return of_number(self.old)
        is_whole = taken == {unit for axis in self.axes for unit in axis.units} and not point
        return of_number(self.new) if is_whole else mixed(self.old, self.new, taken, point)

    def _word(self, taken: frozenset[str], point: tuple[str, str] | None = None) -> Word:
        """The verdict on the old number with these units of the new number."""
        if self.is_impossible(self.old, self.new, taken):
            return "skip"
        return self._verdict(self._candidate(taken, point))

    def _flip(
        self, before: frozenset[str], row: Sequence[frozenset[str]]
    ) -> tuple[frozenset[str], Sequence[frozenset[str]]]:
        """The units with which the old number is still good, and the groups of ``row`` that then make it bad: one, or
        several that could not be separated. Groups are taken one after the other, in addition to ``before``."""

        def edge_of(row: Sequence[frozenset[str]]) -> tuple[int, int]:
            return edge(len(row) + 1, lambda place: self._word(before.union(*row[:place])), _MOST_MISSES_OF_UNITS)

        good, bad = edge_of(row)
        if bad - good > 1:  # these may need the last group: take it first, and try again
            turned = [*row[:good], row[bad - 1], *row[good : bad - 1]]
            again = edge_of(turned)
            if again[1] - again[0] < bad - good:
                row, (good, bad) = turned, again
        return before.union(*row[:good]), row[good:bad]

    def _located(
        self, before: frozenset[str], chosen: frozenset[str]
    ) -> tuple[tuple[Culprit, ...], BisectCandidate, BisectCandidate]:
        """The culprits, each with its points if it has any, and the good and the bad candidate next to the first
        culprit."""
        units = [(axis.name, unit) for axis in self.axes for unit in axis.units if unit in chosen - before]
        culprits = tuple(self._at_point(chosen, Culprit(axis, unit)) for axis, unit in units)
        first = next((culprit for culprit in culprits if culprit.good or culprit.bad), culprits[0])
        good = self._candidate(chosen, (first.unit, first.good)) if first.good else self._candidate(before)
        return culprits, good, self._candidate(chosen, (first.unit, first.bad) if first.bad else None)

    def _at_point(self, chosen: frozenset[str], culprit: Culprit) -> Culprit:
        """The culprit with its two nearest points. A merge contains further points."""
        key = (culprit.unit, culprit.good, culprit.bad)
        points = self.rows.get(key)
        if points is None:
            raise _OpenQuestion(ListPoints(self.old, self.new, *key))
        if not points:
            return culprit
        last, first = edge(len(points) + 2, lambda place: self._word(chosen, (culprit.unit, points[place - 1])))
        good = points[last - 1] if last else culprit.good
        bad = points[first - 1] if first <= len(points) else culprit.bad
        closer = Culprit(culprit.axis, culprit.unit, good, bad, points[last : first - 1])
        return self._at_point(chosen, closer) if first == last + 1 else closer


def journal_of(project: Project) -> Journal[Bisection]:
    """The journal of the project's bisection; a project has at most one."""
    return Journal(
        project.bisecting / "journal.json",
        Bisection,
        format=5,
        what="a bisection",
        while_held="`builder bisect status` shows its progress; ^C in its terminal pauses it",
        if_unreadable=(
            "run `builder bisect stop` with the version of builder that wrote the file, or remove the file and "
            "begin again"
        ),
    )


def write_bisection(project: Project, bisection: Bisection) -> None:
    """Writes the bisection, and returns when it is on the disk."""
    journal_of(project).write(replace(bisection, judge=bisection.judge.recorded))
