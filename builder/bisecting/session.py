"""A bisection as data: what was asked for, and all that has come of it so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, get_args

from builder import humanize
from builder.bisecting.search import Answers

if TYPE_CHECKING:
    from builder.bisecting.candidate import BisectCandidate
    from builder.bisecting.difference import Row
    from builder.bisecting.trials import Trial

JudgeKind = Literal["script", "probe", "prove", "user"]
JUDGES: tuple[JudgeKind, ...] = get_args(JudgeKind)


@dataclass(frozen=True)
class Judge:
    """The one who tells good from bad: a ``script``, a ``probe``, the proof of templates and parsers, or the ``user``.
    ``name`` is the script's path or the probe's name; a script without a server (``serves``) gets the image alone. In a
    journal ``name`` is a digest: whoever wrote the journal must not choose the program."""

    kind: JudgeKind
    name: str = ""
    serves: bool = True

    @property
    def is_constant(self) -> bool:
        """True where one image always gets one verdict, so that it is tried once."""
        return self.kind in {"prove", "user"}

    @property
    def recorded(self) -> Judge:
        """The judge as the journal has it, to compare with the one that is typed again."""
        return replace(self, name=sha256(self.name.encode()).hexdigest() if self.name else "")


@dataclass(frozen=True)
class BisectOutlook:
    """The outlook of a bisection before its first candidate: the ``steps`` beside the two ends, of which
    ``steps_on_axis`` look for the place on the axis; ``seconds`` to build the images, None where nothing tells; the
    bytes of ``disk`` that they take at most, and those that are ``free``, None where that is on another machine.
    ``axes`` are in words."""

    steps: int
    steps_on_axis: int
    axes: tuple[str, ...]
    seconds: float | None
    disk: int
    free: int | None

    @property
    def lines(self) -> tuple[str, ...]:
        """The outlook in words."""
        on_axis = f", {self.steps_on_axis} of them on the axis" if self.steps_on_axis else ""
        built = "an unknown time (none was built here)" if self.seconds is None else humanize.duration(self.seconds)
        free = "" if self.free is None else f" of the {humanize.size(self.free)} free"
        cost = f"expected: {built} to build images, and each verdict, timed at the two ends; at most "
        return (
            f"axes: {', '.join(self.axes) or 'none'}",
            f"about {humanize.counted(self.steps, 'step')} after the two ends{on_axis}",
            f"{cost}{humanize.size(self.disk)} of disk{free}",
        )


@dataclass(frozen=True)
class Bisection:
    """A bisection as far as it is. ``target`` is the model, recipe or definition as typed; ``numbers`` are those of
    ``repository`` from the end that counts as good to the other. ``recipe`` is the path of the recipe, empty where the
    image alone is looked at, and ``recipe_before`` its text at the time of the first number, empty where it is the
    same, or where ``present_recipe`` says that the first number is served by the present one. ``served`` is True where
    the model's own server ran at the beginning. ``waiting`` is the candidate that the user is looking at. ``outlook``
    is that of its beginning. With ``unstartable`` a server that does not start is what is being looked for: the bad end
    does not either.

    The journal holds neither the judge's name, the recipe nor the platform: they are found again each time."""

    target: str
    repository: str
    platform: str
    numbers: tuple[int, ...]
    judge: Judge
    started: str
    find_fix: bool = False
    recipe: str = ""
    recipe_before: str = ""
    present_recipe: bool = False
    served: bool = False
    done: tuple[Trial, ...] = ()
    rows: tuple[Row, ...] = ()
    waiting: BisectCandidate | None = None
    unstartable: bool = False
    outlook: BisectOutlook | None = None

    @property
    def plan(self) -> tuple[str, ...]:
        """The plan in words."""
        first, last = (f"{self.repository}:{self.numbers[place]}" for place in (0, -1))
        between = len(self.numbers) - 2
        numbers = f", {humanize.counted(between, 'number')} between them" if between else ""
        return (f"from {first} to {last}{numbers}", *(self.outlook.lines if self.outlook else ()))

    @property
    def answers(self) -> Answers:
        return Answers(self.done, self.rows)

    def with_trial(self, trial: Trial) -> Bisection:
        return replace(self, done=(*self.done, trial), waiting=None)

    def of_number(self, number: int) -> tuple[Trial, ...]:
        """The trials of a number."""
        return tuple(trial for trial in self.done if trial.candidate.number == number)
