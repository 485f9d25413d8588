"""The search for a culprit is a pure function from all known answers to the next question.

What is searched comes first, then bisection in a row, the verdicts that trials allow, and the search. The search starts
again from all answers each time and has no other state: a journal of the answers is enough to continue after anything,
and supposing answers shows what is ahead.
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


# A commit or a version, as a journal may hold it.
PointText: TypeAlias = Annotated[str, checking.pattern("version")]


@dataclass(frozen=True)
class Axis:
    """One side on which two numbers differ: the base image, vLLM, the Python packages, a mod, the template, the flags
    of the recipe. Its ``units``, in a fixed order, can each be taken from either number; a name is used once."""

    name: str
    units: tuple[str, ...]


@dataclass(frozen=True, order=True)
class BisectCandidate:
    """The number ``old`` with everything in ``taken`` as ``new`` has it; ``point`` puts one unit of it at a commit or a
    version between the two. A number itself is ``old`` and ``new`` at once."""

    old: int
    new: int
    taken: tuple[str, ...] = ()
    point: tuple[str, PointText] | None = None

    @property
    def number(self) -> int | None:
        """Its number, None if it has to be made."""
        return self.old if self.old == self.new else None


def of_number(number: int) -> BisectCandidate:
    return BisectCandidate(number, number)


def mixed(old: int, new: int, taken: frozenset[str], point: tuple[str, str] | None = None) -> BisectCandidate:
    """The candidate of these parts, always in the same order, so that equal ones compare equal."""
    return BisectCandidate(old, new, tuple(sorted(taken)), point)


# The first bad one in a row: bisection with places that cannot be tried.

Word = Literal["good", "bad", "skip", "unclear"]
_MOST_MISSES, _MOST_MISSES_OF_UNITS = 40, 4


def edge(count: int, verdict: Callable[[int], Word], most_misses: int = _MOST_MISSES) -> tuple[int, int]:
    """The last good and the first bad of the places 0 to ``count`` - 1, of which the first is good and the last bad.
    Everything between the two was tried without a verdict, or not at all after ``most_misses`` in a row.

    The place to try is the middle. Places that cannot be tried come in runs, so each miss leads twice as far away from
    the middle, to either side in turn: a long run costs a few misses, and the halves stay nearly equal."""
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


# The trials of candidates, and the verdicts that they allow: a probe may pass by luck, and fail by accident. Where no
# candidate gave two answers, one trial is a verdict. Where one did, the ends are tried `_MOST_OF_ENDS` times, and the
# share of trials that fail there tells how many more the others need: Wald's sequential test, until one side is a
# hundred times as likely as the other (https://en.wikipedia.org/wiki/Sequential_probability_ratio_test).

_FEWEST_OF_ENDS, _MOST_OF_ENDS = 3, 12
_MOST, _MOST_AT_ONCE = 40, 6
_SURE, _VERY_SURE = math.log(100), math.log(10_000)
# Ends whose shares of failures are closer than this cannot be told apart in a night.
_LEAST_DIFFERENCE = 0.25


@dataclass(frozen=True)
class Trial:
    """The outcome of one or all trials of a candidate: how often it ``passed`` and ``failed``. ``skipped`` says why it
    could not be tried; ``note`` is what the judge said."""

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
    ``is_clean`` is true if no candidate gave two answers."""

    def __init__(self, trials: Iterable[Trial], passing: BisectCandidate, failing: BisectCandidate) -> None:
        self.sums: dict[BisectCandidate, Trial] = {}
        for trial in trials:
            own = self.tally(trial.candidate)
            passed, failed = own.passed + trial.passed, own.failed + trial.failed
            self.sums[trial.candidate] = Trial(trial.candidate, passed, failed, own.skipped or trial.skipped)
        self.is_clean = not any(tally.passed and tally.failed for tally in self.sums.values())
        # Drawn a little to the middle: a few trials never show that something cannot happen.
        ends = (self.tally(passing), self.tally(failing))
        self.passing, self.failing = ((end.failed + 0.5) / (end.tries + 1) for end in ends)

    def tally(self, candidate: BisectCandidate) -> Trial:
        """All trials of a candidate, added up."""
        return self.sums.get(candidate, Trial(candidate))

    def verdict(self, tally: Trial) -> Word:
        """The verdict of these trials, if none are missing."""
        if tally.skipped:
            return "skip"
        odds = self._odds(tally.passed, tally.failed)
        if abs(odds) < _SURE and not self.is_clean:
            return "unclear"
        return "bad" if odds > 0 else "good"

    def missing(self, tally: Trial, *, pivot: bool = False) -> int:
        """The number of trials after which there may be a verdict, if they agree with those so far. It takes more for a
        ``pivot``, on which all else rests: the last good one and the first bad one. A wrong verdict leads the search to
        itself, so it is enough to look twice here."""
        if tally.tries >= _MOST or tally.skipped:
            return 0
        if self.is_clean:
            return max(0, (_FEWEST_OF_ENDS if pivot else 1) - tally.tries)
        odds = self._odds(tally.passed, tally.failed)
        distance = (_VERY_SURE if pivot else _SURE) - abs(odds)
        step = abs(self._odds(0, 1) if odds > 0 else self._odds(1, 0))
        return max(0, min(math.ceil(distance / step), _MOST_AT_ONCE, _MOST - tally.tries))

    def _odds(self, passed: int, failed: int) -> float:
        """The logarithm of how much likelier these trials are with the fault than without it."""
        odds = failed * math.log(self.failing / self.passing)
        return odds + passed * math.log((1 - self.failing) / (1 - self.passing))


# A bisection is data: what the user asked for and all results so far, kept in a journal after each answer. Anyone may
# have written the journal, so it contains only names of candidates and verdicts. The judge, the recipe and the options
# of the model's server come from what the user types again, from recipes/, and from the engine.

JudgeKind = Literal["script", "probe", "prove", "same", "user"]


@dataclass(frozen=True)
class Judge:
    """The one who tells good from bad: a ``script``, a ``probe``, the proof of templates and parsers, the ``same``
    answers as the first number's, or the ``user``.
    ``name`` is the script's path or the probe's name. In a journal it is a digest: whoever wrote the journal must not
    choose the program."""

    kind: JudgeKind
    name: Annotated[str, "(?:[0-9a-f]{64})?"] = ""

    @property
    def is_steady(self) -> bool:
        """True if it never gives two answers for one image."""
        return self.kind in {"prove", "same", "user"}

    @property
    def recorded(self) -> Judge:
        """The judge as the journal has it, to compare with the one that is typed again."""
        return replace(self, name=sha256(self.name.encode()).hexdigest() if self.name else "")


@dataclass(frozen=True)
class Row:
    """The points of a unit between two others, in their order: commits, versions. ``after`` and ``before`` are empty
    for the unit's ends."""

    unit: str
    after: str
    before: str
    points: tuple[PointText, ...]


@dataclass(frozen=True)
class Bisection:
    """A bisection so far. ``target`` is the model, recipe or definition as typed; ``numbers`` are numbers of
    ``repository`` from the good end to the bad end. ``served`` is True if the model's own server ran at the beginning.
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
            raise RecordError("expected two numbers or more", ("numbers",))

    @property
    def ends(self) -> tuple[ImageName, ImageName]:
        """The good end and the bad end."""
        return ImageName(self.repository, self.numbers[0]), ImageName(self.repository, self.numbers[-1])


# The search: ends → numbers → axes → units of the axis → points of the unit → both sides once more. Axes and units are
# taken from the new number one after the other, the cheapest to change first: the last one before the verdict changes
# is the culprit. Known verdicts come from the trials, and the first that is missing is the next question.

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
AxesBetween: TypeAlias = Callable[[int, int], tuple[Axis, ...]]
IsImpossible: TypeAlias = Callable[[int, int, frozenset[str]], bool]


@dataclass(frozen=True)
class Culprit:
    """A unit, and the last ``good`` and the first ``bad`` of its points, if it has points. Those ``between`` could not
    be tried: any of them may be the culprit, as may ``bad``."""

    axis: str
    unit: str
    good: str = ""
    bad: str = ""
    between: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conclusion:
    """The end of a search. The candidates ``good`` and ``bad`` on either side differ in the ``culprits`` alone: one, or
    several that could not be tried apart. ``steps`` counts the candidates beside the two ends."""

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
    """The next question after the answers so far, or the conclusion if none is open. ``axes`` returns the difference of
    two neighbouring numbers, the cheapest to change first; ``is_impossible`` is true of units of the second one that
    the first one cannot have, such as a FlashInfer that its vLLM does not accept."""
    try:
        return _Search(bisection, axes, is_impossible).conclusion()
    except _OpenQuestion as step:
        return step.question


class _Search:
    """One pass over the answers. ``old`` and ``new`` are the nearest known numbers, one good and one bad, and ``axes``
    their difference."""

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
        for each in (old, new):  # everything after stands on these two
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
        """Asks again about what all else rests on."""
        if not self.is_steady and (times := self.noise.missing(self.noise.tally(tried), pivot=True)):
            raise _OpenQuestion(TryCandidate(tried, times))

    def _candidate(self, taken: frozenset[str], point: tuple[str, str] | None = None) -> BisectCandidate:
        """The candidate with these units; a number if it equals one."""
        if not taken:
            return of_number(self.old)
        is_whole = taken == {unit for axis in self.axes for unit in axis.units} and not point
        return of_number(self.new) if is_whole else mixed(self.old, self.new, taken, point)

    def _word(self, taken: frozenset[str], point: tuple[str, str] | None = None) -> Word:
        """The verdict on the old number with these units of the new one."""
        if self.is_impossible(self.old, self.new, taken):
            return "skip"
        return self._verdict(self._candidate(taken, point))

    def _flip(
        self, before: frozenset[str], row: Sequence[frozenset[str]]
    ) -> tuple[frozenset[str], Sequence[frozenset[str]]]:
        """The units with which the old number is still good, and the groups of the ``row`` that then make it bad: one,
        or several that could not be tried apart. The groups are taken one after the other, in addition to ``before``.
        """

        def edge_of(row: Sequence[frozenset[str]]) -> tuple[int, int]:
            return edge(len(row) + 1, lambda place: self._word(before.union(*row[:place])), _MOST_MISSES_OF_UNITS)

        good, bad = edge_of(row)
        if bad - good > 1:  # some of them may be tried apart once the last one is taken, which they need
            turned = [*row[:good], row[bad - 1], *row[good : bad - 1]]
            again = edge_of(turned)
            if again[1] - again[0] < bad - good:
                row, (good, bad) = turned, again
        return before.union(*row[:good]), row[good:bad]

    def _located(
        self, before: frozenset[str], chosen: frozenset[str]
    ) -> tuple[tuple[Culprit, ...], BisectCandidate, BisectCandidate]:
        """The culprits, each at its point if it has points, and the candidates on either side of the first one."""
        units = [(axis.name, unit) for axis in self.axes for unit in axis.units if unit in chosen - before]
        culprits = tuple(self._at_point(chosen, Culprit(axis, unit)) for axis, unit in units)
        first = next((culprit for culprit in culprits if culprit.good or culprit.bad), culprits[0])
        good = self._candidate(chosen, (first.unit, first.good)) if first.good else self._candidate(before)
        return culprits, good, self._candidate(chosen, (first.unit, first.bad) if first.bad else None)

    def _at_point(self, chosen: frozenset[str], culprit: Culprit) -> Culprit:
        """The culprit between its two nearest points. A merge has points inside."""
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
    """The journal of a project's bisection; a project has one at a time."""
    return Journal(
        project.bisecting / "journal.json",
        Bisection,
        format=5,
        what="a bisection",
        while_held="`builder bisect status` shows its progress; ^C there pauses it",
        if_unreadable=(
            "run `builder bisect stop` of the version that wrote the file; or remove the file, and begin again"
        ),
    )


def write_bisection(project: Project, bisection: Bisection) -> None:
    """Writes the bisection to disk before this returns."""
    journal_of(project).write(replace(bisection, judge=bisection.judge.recorded))
