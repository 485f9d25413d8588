"""A bisection is data: the request of the user and all results so far.

The data comes first, then the journal that keeps it on disk after each answer.
Anyone may have written the journal, so it contains only names of candidates and verdicts.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, get_args

from builder.base import files, words
from builder.base.errors import ConflictError
from builder.lab.bisect.search import BisectCandidate, Row, Trial
from builder.lock import kinds
from builder.lock.kinds import WrongError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.base.project import Project


JudgeKind = Literal["script", "probe", "prove", "user"]


@dataclass(frozen=True)
class Judge:
    """The one who tells good from bad: a ``script``, a ``probe``, the proof of templates and parsers, or the ``user``.
    ``name`` is the script's path or the probe's name; a script without a server (``serves``) gets the image alone. In a
    journal ``name`` is a digest: whoever wrote the journal must not choose the program."""

    kind: JudgeKind
    name: str = ""
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


# The journal of a bisection, in the state folder: whole on the disk after each answer, so that nothing is tried twice
# whatever ends the program. A project has one bisection at a time. Anybody may have written the file. So it holds names
# of candidates, which keep their grammars, and verdicts. The judge, the recipe and the options of the model's server
# come from what is typed again, from recipes/, and from the engine.

_FORMAT = 3
_FILE = "journal.json"
_FOUND_AGAIN = ("recipe", "recipe_before", "platform")
_LARGEST = 64 << 20
_POINT = kinds.VERSION.read
_DIGEST = re.compile("(?:[0-9a-f]{64})?")


@contextmanager
def locked_bisection(project: Project) -> Iterator[None]:
    """Holds the bisection of a project. Raises ConflictError where another process does."""
    files.make_folder(project.bisecting)
    try:
        with files.locked(project.bisecting / "journal.lock", wait_seconds=0):
            yield
    except files.LockHeldError as error:
        holder = f", process {error.holder}" if error.holder else ""
        raise ConflictError(
            f"a bisection is under way{holder}", hint="`builder bisect status` shows how far it is; ^C there pauses it"
        ) from None


def write_bisection(project: Project, bisection: Bisection) -> None:
    """Writes the journal, on the disk before this returns."""
    files.write_atomically(project.bisecting / _FILE, f"{text_of(bisection)}\n".encode())


def read_bisection(project: Project) -> Bisection | None:
    """The bisection that is under way or was interrupted, None where there is none. Raises ConflictError for a journal
    that this version does not write."""
    path = project.bisecting / _FILE
    try:
        return _parse(files.read_plain_file(path, _LARGEST).decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, WrongError):
        raise ConflictError(
            f"{project.relative(path)} is no journal of a bisection that this version of builder can read",
            hint="end it with the version that wrote it, `builder bisect stop`; or remove the file, and begin again",
        ) from None


def remove_bisection(project: Project) -> None:
    (project.bisecting / _FILE).unlink(missing_ok=True)


def text_of(bisection: Bisection) -> str:
    """The text of a journal."""
    data = {**asdict(bisection), "judge": asdict(bisection.judge.recorded)}
    kept = {key: value for key, value in data.items() if key not in _FOUND_AGAIN}
    return json.dumps({"format": _FORMAT, **kept}, indent=1, ensure_ascii=False)


def _parse(text: str) -> Bisection:
    data: dict[str, Any] = json.loads(text)
    if data.pop("format") != _FORMAT or data.keys() & {*_FOUND_AGAIN}:
        raise ValueError("of another version")
    kinds.REPOSITORY.read(data["repository"])
    data["judge"] = Judge(**data["judge"])
    data["done"] = tuple(Trial(**{**trial, "candidate": _candidate(trial["candidate"])}) for trial in data["done"])
    data["rows"] = tuple(Row(**{**row, "points": tuple(map(_POINT, row["points"]))}) for row in data["rows"])
    data["waiting"] = _candidate(data["waiting"]) if data["waiting"] else None
    data["numbers"] = tuple(data["numbers"])
    if outlook := data.get("outlook"):
        data["outlook"] = BisectOutlook(**{**outlook, "axes": tuple(outlook["axes"])})
    bisection = Bisection(platform="", **data)
    judge, numbers = bisection.judge, bisection.numbers
    flags = (bisection.find_fix, bisection.present_recipe, bisection.served, bisection.unstartable)
    if (
        judge.kind not in get_args(JudgeKind)
        or not _DIGEST.fullmatch(judge.name)
        or not all(isinstance(word, str) for word in (bisection.target, bisection.started))
        or not all(isinstance(flag, bool) for flag in flags)
        or len(numbers) < 2
        or not all(type(number) is int for number in numbers)
    ):
        raise ValueError("other kinds of values")
    return bisection


def _candidate(data: dict[str, Any]) -> BisectCandidate:
    points = tuple((str(unit), _POINT(point)) for unit, point in data["points"])
    return BisectCandidate(int(data["old"]), int(data["new"]), tuple(map(str, data["taken"])), points)
