"""A bisection is data: what the user asked for and all results so far, kept in a journal after each answer.

Anyone may have written the journal, so it contains only names of candidates and verdicts. The judge, the recipe and the
options of the model's server come from what the user types again, from recipes/, and from the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from builder.base.journal import Journal
from builder.base.records import RecordError
from builder.lab.bisect.search import BisectCandidate, Row, Trial  # noqa: TC001 (types of a record)
from builder.lock import kinds

if TYPE_CHECKING:
    from builder.base.project import Project


JudgeKind = Literal["script", "probe", "prove", "same", "user"]
# A journal never holds these: the typed name leads to them again.
FoundAgain: TypeAlias = Annotated[str, ""]


@dataclass(frozen=True)
class Judge:
    """The one who tells good from bad: a ``script``, a ``probe``, the proof of templates and parsers, the ``same``
    answers as the first number's, or the ``user``.
    ``name`` is the script's path or the probe's name. In a journal it is a digest: whoever wrote the journal must not
    choose the program."""

    kind: JudgeKind
    name: Annotated[str, "(?:[0-9a-f]{64})?"] = ""

    @property
    def recorded(self) -> Judge:
        """The judge as the journal has it, to compare with the one that is typed again."""
        return replace(self, name=sha256(self.name.encode()).hexdigest() if self.name else "")


@dataclass(frozen=True)
class Bisection:
    """A bisection so far. ``target`` is the model, recipe or definition as typed; ``numbers`` are those of
    ``repository`` from the good end to the bad end. ``recipe`` is the path of the recipe, empty if the image alone is
    judged. ``recipe_before`` is its text at the time of the first number, empty if that is the same. ``served`` is True
    if the model's own server ran at the beginning. ``waiting`` is the candidate that the user is judging. With
    ``unstartable`` the bad end does not start, and that is the fault."""

    target: str
    repository: Annotated[str, kinds.REPOSITORY.pattern]
    numbers: tuple[int, ...]
    judge: Judge
    started: str
    platform: FoundAgain = field(default="", kw_only=True)
    recipe: FoundAgain = ""
    recipe_before: FoundAgain = ""
    served: bool = False
    done: tuple[Trial, ...] = ()
    rows: tuple[Row, ...] = ()
    waiting: BisectCandidate | None = None
    unstartable: bool = False

    def __post_init__(self) -> None:
        if len(self.numbers) < 2:
            raise RecordError("expected two numbers or more", ("numbers",))

    @property
    def ends(self) -> tuple[int, int]:
        """The good end and the bad end."""
        return self.numbers[0], self.numbers[-1]


def journal_of(project: Project) -> Journal[Bisection]:
    """The journal of a project's bisection; a project has one at a time."""
    return Journal(
        project.bisecting / "journal.json",
        Bisection,
        format=4,
        what="a bisection",
        while_held="`builder bisect status` shows its progress; ^C there pauses it",
        if_unreadable=(
            "end it with the version that wrote it, `builder bisect stop`; or remove the file, and begin again"
        ),
    )


def write_bisection(project: Project, bisection: Bisection) -> None:
    """Writes the bisection to disk before this returns, without what the journal never holds."""
    judge = bisection.judge.recorded
    journal_of(project).write(replace(bisection, judge=judge, platform="", recipe="", recipe_before=""))
