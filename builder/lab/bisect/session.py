"""A bisection is data: the request of the user and all results so far.

The data comes first, then the journal that keeps it on disk after each answer.
Anyone may have written the journal, so it contains only names of candidates and verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from builder.base import words
from builder.base.journal import Journal
from builder.base.records import RecordError
from builder.lab.bisect.search import BisectCandidate, Row, Trial  # noqa: TC001 (types of a record)
from builder.lock import checking

if TYPE_CHECKING:
    from builder.base.project import Project


JudgeKind = Literal["script", "probe", "prove", "same", "user"]
# What a journal never holds: it is found again by what is typed.
FoundAgain: TypeAlias = Annotated[str, ""]


@dataclass(frozen=True)
class Judge:
    """The one who tells good from bad: a ``script``, a ``probe``, the proof of templates and parsers, the ``same``
    answers as the first number's, or the ``user``.
    ``name`` is the script's path or the probe's name; a script without a server (``serves``) gets the image alone. In a
    journal ``name`` is a digest: whoever wrote the journal must not choose the program."""

    kind: JudgeKind
    name: Annotated[str, "(?:[0-9a-f]{64})?"] = ""
    serves: bool = True

    @property
    def recorded(self) -> Judge:
        """The judge as the journal has it, to compare with the one that is typed again."""
        return replace(self, name=sha256(self.name.encode()).hexdigest() if self.name else "")


@dataclass(frozen=True)
class BisectOutlook:
    """The cost of a bisection: the ``steps`` beside the two ends, of which ``steps_on_axis`` look for the place on the
    axis; the ``seconds`` to build the images, None where they are not known; the bytes of ``disk`` that the images take
    at most, and the bytes that are ``free``, None where the disk is on another machine. ``axes`` are in words."""

    steps: int
    steps_on_axis: int
    axes: tuple[str, ...]
    seconds: float | None
    disk: int
    free: int | None


@dataclass(frozen=True)
class Bisection:
    """A bisection so far. ``target`` is the model, recipe or definition as typed; ``numbers`` are those of
    ``repository`` from the end that counts as good to the other. ``recipe`` is the path of the recipe, empty where the
    image alone is looked at. ``recipe_before`` is its text at the time of the first number, empty where it is the same,
    or where ``present_recipe`` says that the present one serves the first number. ``served`` is True where the model's
    own server ran at the beginning. ``waiting`` is the candidate that the user is looking at. With ``unstartable`` the
    bad end does not start, and that is the fault that is looked for. ``outlook`` is that of the beginning."""

    target: str
    repository: Annotated[str, checking.pattern("repository")]
    numbers: tuple[int, ...]
    judge: Judge
    started: str
    platform: FoundAgain = field(default="", kw_only=True)
    find_fix: bool = False
    recipe: FoundAgain = ""
    recipe_before: FoundAgain = ""
    present_recipe: bool = False
    served: bool = False
    done: tuple[Trial, ...] = ()
    rows: tuple[Row, ...] = ()
    waiting: BisectCandidate | None = None
    unstartable: bool = False
    outlook: BisectOutlook | None = None

    def __post_init__(self) -> None:
        if len(self.numbers) < 2:
            raise RecordError("expected two numbers or more", ("numbers",))

    @property
    def passing(self) -> int:
        """The end that passes."""
        return self.numbers[-1 if self.find_fix else 0]

    @property
    def failing(self) -> int:
        """The end that fails."""
        return self.numbers[0 if self.find_fix else -1]

    def of_number(self, number: int) -> tuple[Trial, ...]:
        """The trials of a number."""
        return tuple(trial for trial in self.done if trial.candidate.number == number)

    @property
    def plan(self) -> tuple[str, ...]:
        """The plan in words."""
        first, last = (f"{self.repository}:{self.numbers[place]}" for place in (0, -1))
        between = len(self.numbers) - 2
        numbers = f", {words.counted(between, 'number')} between them" if between else ""
        course = f"from {first} to {last}{numbers}"
        if self.outlook is None:
            return (course,)
        own = self.outlook
        on_axis = f", {own.steps_on_axis} of them on the axis" if own.steps_on_axis else ""
        built = "an unknown time (none was built here)"
        if own.seconds is not None:
            built = f"at most {words.duration_text(own.seconds)}"
        free = "" if own.free is None else f" of the {words.size_text(own.free)} free"
        cost = f"expected: {built} to build images, and each verdict, timed at the two ends; at most "
        return (
            course,
            f"axes: {', '.join(own.axes) or 'none'}",
            f"about {words.counted(own.steps, 'step')} after the two ends{on_axis}",
            f"{cost}{words.size_text(own.disk)} of disk{free}",
        )


# The journal of a bisection, written after each answer, so that nothing is tried twice whatever ends the program. A
# project has one bisection at a time. The judge, the recipe and the options of the model's server come from what is
# typed again, from recipes/, and from the engine.


def journal_of(project: Project) -> Journal[Bisection]:
    """The journal of a project's bisection."""
    return Journal(
        project.bisecting / "journal.json",
        Bisection,
        format=3,
        what="a bisection",
        while_held="`builder bisect status` shows how far it is; ^C there pauses it",
        if_unreadable=(
            "end it with the version that wrote it, `builder bisect stop`; or remove the file, and begin again"
        ),
    )


def write_bisection(project: Project, bisection: Bisection) -> None:
    """Writes what the journal holds of a bisection, on the disk before this returns."""
    judge = bisection.judge.recorded
    journal_of(project).write(replace(bisection, judge=judge, platform="", recipe="", recipe_before=""))
