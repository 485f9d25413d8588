"""The trials of candidates, and the verdicts that they allow: a probe may pass by luck, and fail by accident.

Where no candidate ever gave two answers, one trial is a verdict. Where one did, the ends are tried `MOST_OF_ENDS`
times, and the share of trials that fail there tells how many more it takes elsewhere: Wald's sequential test, until one
side is a hundred times as likely as the other (https://en.wikipedia.org/wiki/Sequential_probability_ratio_test)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.bisecting.candidate import BisectCandidate

Word = Literal["good", "bad", "skip", "unclear"]

FEWEST_OF_ENDS = 3
MOST_OF_ENDS = 12
_MOST = 40
_MOST_AT_ONCE = 6
_SURE, _VERY_SURE = math.log(100), math.log(10_000)
# Ends whose shares of failures are closer than this cannot be told apart in a night.
_LEAST_DIFFERENCE = 0.25


@dataclass(frozen=True)
class Trial:
    """The outcome of trying a candidate, once or all times together: how often it ``passed`` and ``failed``.
    ``skipped`` says why it could not be tried at all, and is empty where it was. ``seconds`` is how long it took, and
    ``note`` what the judge said."""

    candidate: BisectCandidate
    passed: int = 0
    failed: int = 0
    skipped: str = ""
    seconds: float = 0.0
    note: str = ""

    @property
    def tries(self) -> int:
        return self.passed + self.failed


@dataclass(frozen=True)
class Noise:
    """The shares of trials that fail: of the end that passes, and of the one that fails. ``is_clean`` where no
    candidate gave two answers."""

    is_clean: bool
    passing: float
    failing: float

    def verdict(self, tally: Trial) -> Word | None:
        """The verdict that these trials allow, None where it takes more of them."""
        if tally.skipped:
            return "skip"
        if not tally.tries:
            return None
        if self.is_clean:
            return "bad" if tally.failed else "good"
        odds = self._odds(tally.passed, tally.failed)
        if abs(odds) >= _SURE:
            return "bad" if odds > 0 else "good"
        return "unclear" if tally.tries >= _MOST else None

    def lacking(self, tally: Trial, *, pivot: bool = False) -> int:
        """The number of trials after which there may be a verdict, if they agree with those so far. It takes more for a
        ``pivot``, on which all else rests: the last good one and the first bad one. A wrong verdict leads the search to
        itself, so it is enough to look twice here."""
        if tally.tries >= _MOST or tally.skipped:
            return 0
        if self.is_clean:
            return max(0, (FEWEST_OF_ENDS if pivot else 1) - tally.tries)
        odds = self._odds(tally.passed, tally.failed)
        missing = (_VERY_SURE if pivot else _SURE) - abs(odds)
        step = abs(self._odds(0, 1) if odds > 0 else self._odds(1, 0))
        return max(0, min(math.ceil(missing / step), _MOST_AT_ONCE, _MOST - tally.tries))

    def _odds(self, passed: int, failed: int) -> float:
        """The logarithm of how much likelier these trials are where the fault is."""
        odds = failed * math.log(self.failing / self.passing)
        return odds + passed * math.log((1 - self.failing) / (1 - self.passing))


def tallies(trials: Iterable[Trial]) -> dict[BisectCandidate, Trial]:
    """All trials, added up for each candidate; what was skipped once is not tried again."""
    sums: dict[BisectCandidate, Trial] = {}
    for trial in trials:
        own = sums.get(trial.candidate, Trial(trial.candidate))
        passed, failed = own.passed + trial.passed, own.failed + trial.failed
        sums[trial.candidate] = Trial(trial.candidate, passed, failed, own.skipped or trial.skipped)
    return sums


def noise(counted: Mapping[BisectCandidate, Trial], passing: BisectCandidate, failing: BisectCandidate) -> Noise:
    """The noise that the trials show, by those of the two ends; the end that should fail is ``failing``."""
    is_clean = not any(tally.passed and tally.failed for tally in counted.values())
    return Noise(is_clean, _share(counted.get(passing)), _share(counted.get(failing)))


def lacking_of_end(tally: Trial, *, is_clean: bool, single: bool) -> int:
    """The number of trials that an end still needs; one is enough where ``single``, for judges that never differ."""
    if tally.skipped:
        return 0
    wanted = 1 if single else FEWEST_OF_ENDS if is_clean else MOST_OF_ENDS
    return max(0, wanted - tally.tries)


def are_alike(shown: Noise) -> bool:
    """True where the ends fail nearly as often as each other: no number of trials tells the candidates apart."""
    return shown.failing - shown.passing < _LEAST_DIFFERENCE


def _share(tally: Trial | None) -> float:
    """The share of failures, drawn a little to the middle: a few trials never show that something cannot happen."""
    return (tally.failed + 0.5) / (tally.tries + 1) if tally else 0.5
