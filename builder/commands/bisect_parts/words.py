"""A bisection in words: what is tried, what came of it, and how much is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import humanize
from builder.bisecting import search, trials

if TYPE_CHECKING:
    from builder.bisecting.candidate import BisectCandidate
    from builder.bisecting.difference import BisectSubject
    from builder.bisecting.search import TryCandidate
    from builder.bisecting.session import Bisection
    from builder.bisecting.trials import Trial

_SHOWN = 3
_MOST_AHEAD = 60


def of_candidate(candidate: BisectCandidate, repository: str = "") -> str:
    """A candidate in words: a number, or what it takes of another."""
    if candidate.number is not None:
        return f"{repository}:{candidate.number}" if repository else f"number {candidate.number}"
    short = {unit: point[:12] if len(point) == 40 else point for unit, point in candidate.points}
    taken = [f"{unit} at {short[unit]}" if unit in short else unit for unit in candidate.taken]
    more = f" and {len(taken) - _SHOWN} more" if len(taken) > _SHOWN else ""
    return f"number {candidate.old} with {', '.join(taken[:_SHOWN])}{more} of {candidate.new}"


def of_question(bisection: Bisection, subject: BisectSubject, question: TryCandidate) -> str:
    """The step that begins now."""
    tried = list(dict.fromkeys(trial.candidate for trial in bisection.done))
    number = tried.index(question.candidate) + 1 if question.candidate in tried else len(tried) + 1
    times = f", {question.times} times" if question.times > 1 else ""
    again = " again" if question.candidate in tried else ""
    left = steps_left(bisection, subject)
    about = f", about {left} to go" if left else ""
    return f"step {number}{about}: trying {of_candidate(question.candidate, bisection.repository)}{again}{times}"


def of_trial(trial: Trial) -> str:
    """The outcome of a trial."""
    word = "skipped" if trial.skipped else "bad" if trial.failed and not trial.passed else "good"
    if trial.passed and trial.failed:
        word = f"good {trial.passed} of {trial.tries} times"
    note = trial.skipped or trial.note
    took = f" after {humanize.duration(trial.seconds)}" if trial.seconds >= 1 else ""
    return f"  {word}{took}{f': {note}' if note else ''}"


def steps_left(bisection: Bisection, subject: BisectSubject) -> int:
    """The number of candidates that are still to be tried, as far as it can be known."""
    return len(candidates_ahead(bisection, subject))


def candidates_ahead(bisection: Bisection, subject: BisectSubject) -> tuple[BisectCandidate, ...]:
    """The candidates that are still to be tried, if every verdict is the less favourable one, as far as it can be
    known: what lies between two commits is only known once their axis is."""
    answers = bisection.answers
    ahead: list[BisectCandidate] = []
    while len(ahead) < _MOST_AHEAD:
        step = search.next_step(subject, answers)
        if not isinstance(step, search.TryCandidate):
            break
        number = step.candidate.number
        fails = number == bisection.numbers[-1] or (number is None)
        if bisection.find_fix:
            fails = not fails
        trial = trials.Trial(step.candidate, 0 if fails else step.times, step.times if fails else 0)
        answers = search.Answers((*answers.trials, trial), answers.rows)
        ahead.append(step.candidate)
    return tuple(dict.fromkeys(ahead))
