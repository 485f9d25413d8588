"""The steps of a bisection: each question is answered and noted, until there is none, or the user has to look."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.bisecting import journal, search
from builder.bisecting.difference import BisectSubject
from builder.bisecting.search import Conclusion, ListPoints, TryCandidate
from builder.bisecting.trials import Trial
from builder.commands.bisect_parts import judging, known_conflicts, making, points, serving, spans, words
from builder.errors import BuilderError
from builder.events import Message, ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.bisecting.candidate import BisectCandidate
    from builder.bisecting.session import Bisection
    from builder.commands.bisect_parts.making import CandidateImage
    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.workspace import Workspace


@dataclass(frozen=True)
class BisectContext:
    """The things that the steps share: the spans of the numbers, and the subject of the search."""

    spans: Callable[[int, int], NumberSpan]
    subject: BisectSubject

    def span_of(self, candidate: BisectCandidate) -> NumberSpan:
        numbers = self.subject.numbers
        if candidate.number is None:
            return self.spans(candidate.old, candidate.new)
        place = max(numbers.index(candidate.number), 1)
        return self.spans(numbers[place - 1], numbers[place])


@dataclass(frozen=True)
class LookNow:
    """The end of the steps for now: the user has to look at a candidate, and at its server where it has one."""

    image: str
    address: str


def context(workspace: Workspace, bisection: Bisection) -> BisectContext:
    """The context of a bisection."""
    text = serving.recipe_of(workspace, bisection).text if bisection.recipe else ""
    read = spans.reader(workspace.project, bisection, text)
    subject = BisectSubject(
        numbers=bisection.numbers,
        axes=lambda old, new: read(old, new).axes,
        impossible=known_conflicts.reader(workspace, read),
        find_fix=bisection.find_fix,
        single=bisection.judge.is_constant,
    )
    return BisectContext(read, subject)


def go_on(workspace: Workspace, bisection: Bisection) -> tuple[Bisection, Conclusion | LookNow]:
    """Answers every question, the journal written after each. Where the first number does not do what it should with
    the recipe that git has of its time, that was not the one by which it was served: then it has the present one."""
    bisection, result = _answered(workspace, bisection)
    first = bisection.numbers[0]
    if not isinstance(result, Conclusion) or not bisection.recipe_before:
        return bisection, result
    if result.ending != "good end fails" and not any(trial.skipped for trial in bisection.of_number(first)):
        return bisection, result
    wrong = f"{bisection.repository}:{first} does not do what it should with the {bisection.recipe} of its time"
    workspace.report(Message(f"{wrong}: trying it with the present one"))
    others = tuple(trial for trial in bisection.done if trial.candidate.number != first)
    bisection = _noted(workspace, replace(bisection, recipe_before="", present_recipe=True, done=others))
    return _answered(workspace, bisection)


def _answered(workspace: Workspace, bisection: Bisection) -> tuple[Bisection, Conclusion | LookNow]:
    shared = context(workspace, bisection)
    with _preparing(workspace, shared) as prepare:
        while True:
            step = search.next_step(shared.subject, bisection.answers)
            if isinstance(step, Conclusion):
                return bisection, step
            if isinstance(step, ListPoints):
                row = points.row(workspace, shared.spans(step.old, step.new), step)
                bisection = _noted(workspace, replace(bisection, rows=(*bisection.rows, row)))
                continue
            workspace.report(Message(words.of_question(bisection, shared.subject, step)))
            made = prepare.image(step.candidate)
            if made.problem:
                bisection = _tried(workspace, bisection, Trial(step.candidate, skipped=made.problem))
            elif bisection.judge.kind == "user":
                bisection, shown = _shown(workspace, shared, bisection, step, made.tag)
                if shown:
                    return bisection, shown
            else:
                prepare.ahead(search.likely_next(shared.subject, bisection.answers, step))
                bisection = _judged(workspace, shared, bisection, step, made.tag)


def _judged(
    workspace: Workspace, shared: BisectContext, bisection: Bisection, step: TryCandidate, tag: str
) -> Bisection:
    began = time.monotonic()
    for trial in judging.trials(workspace, bisection, step, tag, _recipe_text(shared, bisection, step.candidate)):
        unstartable = bisection.unstartable or judging.is_unstartable(bisection, trial)
        timed = replace(trial, seconds=round(time.monotonic() - began, 1), note=trial.note[:300])
        bisection = _tried(workspace, replace(bisection, unstartable=unstartable), timed)
        began = time.monotonic()
    return bisection


def _tried(workspace: Workspace, bisection: Bisection, trial: Trial) -> Bisection:
    workspace.report(Message(words.of_trial(trial)))
    return _noted(workspace, bisection.with_trial(trial))


def _shown(
    workspace: Workspace, shared: BisectContext, bisection: Bisection, step: TryCandidate, tag: str
) -> tuple[Bisection, LookNow | None]:
    """Starts the server of a candidate, for the user to look at; None where it does not start."""
    address = ""
    bisection = _noted(workspace, replace(bisection, waiting=step.candidate))
    if bisection.recipe:
        try:
            recipe = serving.recipe_of(workspace, bisection, _recipe_text(shared, bisection, step.candidate))
            address = serving.start(workspace, bisection, recipe, tag).address or ""
        except BuilderError as error:
            reason = f"does not start: {error.message.splitlines()[0]}"
            return _tried(workspace, bisection, Trial(step.candidate, skipped=reason)), None
    return bisection, LookNow(tag, address)


def _recipe_text(shared: BisectContext, bisection: Bisection, candidate: BisectCandidate) -> str:
    """The recipe by which a candidate is served; empty for the present one. The first number has its own, all others
    the present one."""
    if not bisection.recipe_before:
        return ""
    if candidate.number is not None:
        return bisection.recipe_before if candidate.number == bisection.numbers[0] else ""
    return shared.span_of(candidate).recipe_text(candidate)


def _noted(workspace: Workspace, bisection: Bisection) -> Bisection:
    journal.write(workspace.project, bisection)
    return bisection


class CandidatesAhead:
    """The images of candidates, made in the background one after the other while another one is looked at."""

    def __init__(self, workspace: Workspace, shared: BisectContext, pool: ThreadPoolExecutor) -> None:
        self.workspace, self.shared, self.pool = workspace, shared, pool
        self.begun: dict[BisectCandidate, Future[CandidateImage]] = {}

    def image(self, candidate: BisectCandidate) -> CandidateImage:
        """The image of a candidate: what is being made in the background already, or made now, and not after what is
        no longer needed."""
        future = self.begun.pop(candidate, None)
        for other in self.begun.values():
            other.cancel()
        self.begun.clear()
        if future and not future.cancel():
            return future.result()
        return making.make(self.workspace, self.shared.span_of(candidate), candidate)

    def ahead(self, candidates: tuple[BisectCandidate, ...]) -> None:
        """Begins to make the images of what may be next."""
        quiet = replace(self.workspace, report=ignore)
        for candidate in candidates:
            if candidate not in self.begun:
                span = self.shared.span_of(candidate)
                self.begun[candidate] = self.pool.submit(making.make, quiet, span, candidate)


@contextmanager
def _preparing(workspace: Workspace, shared: BisectContext) -> Iterator[CandidatesAhead]:
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="bisect") as pool:
        try:
            yield CandidatesAhead(workspace, shared, pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
