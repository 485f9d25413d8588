"""Ending a command at its places, one after the other, and judging what is there then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.crash.bench import Bench, State
from tests.crash.judging import Outcome, fate_of, judged
from tests.crash.places import Place
from tests.crash.supervision import GO_ON, KILLED, KILLED_AFTER, Fate


@dataclass(frozen=True)
class WholeRun:
    """A run of a command that nothing disturbed: what was there before, and after it and the next command."""

    old: State
    new: State
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Trial:
    """A command that is ended at its places: on which bench, its arguments, and those of the next command, which puts
    right what is left: the same one again, unless it says otherwise. That one may end with one of the ``codes``."""

    bench: Bench
    arguments: tuple[str, ...]
    after: tuple[str, ...] = ()
    codes: tuple[int, ...] = (0, 1)

    def whole(self) -> WholeRun:
        """Runs it to its end, and the next command after it. To be done first: it notes what there is to put back."""
        self.bench.save()
        old = self.bench.state()
        ended, places = self.bench.supervised(self.arguments, lambda _number, _place: GO_ON)
        assert ended.code == 0, ended
        between = self.bench.state()
        after = self.bench.run(*(self.after or self.arguments))
        assert after.code in self.codes, after
        new = self.bench.state()
        assert (between.lock, between.files, between.tags) == (new.lock, new.files, new.tags), "it does more, run twice"
        assert (old.lock, old.files, old.others) != (new.lock, new.files, new.others), "it does nothing"
        return WholeRun(old, new, tuple(places))

    def end_at(self, number: int, fate: Fate, name: str, whole: WholeRun) -> Outcome | None:
        """Ends it at the place ``number``; None where it does not come to so many."""
        self.bench.restore()
        ended, places = self.bench.supervised(self.arguments, lambda at, _place: fate if at == number else GO_ON)
        if len(places) <= number:
            return None
        now = self.bench.state()
        after = self.bench.run(*(self.after or self.arguments))
        return judged(places[number], name, ended, (whole.old, whole.new, now, self.bench.state()), after, self.codes)


Errors = Literal["each", "one", "none"]


def outcomes(trial: Trial, whole: WholeRun, errors: Errors = "each") -> Iterator[Outcome]:
    """Every way in which a command may be ended, at every place: killed, and with ``each`` of the errors that a place
    may meet, with ``one`` of them, in turn, or with ``none``."""
    for number, place in enumerate(whole.places):
        for name, fate in fates(place, errors, number):
            if outcome := trial.end_at(number, fate, name, whole):
                yield outcome


def fates(place: Place, errors: Errors = "each", turn: int = 0) -> Iterator[tuple[str, Fate]]:
    """The ways in which a command may be ended at a place."""
    yield "killed", KILLED
    if place.kind == "engine":
        yield "killed after", KILLED_AFTER
    possible = place.errors()
    if errors == "none" or not possible:
        return
    for error in possible if errors == "each" else [possible[turn % len(possible)]]:
        yield fate_of(error), Fate(error)
