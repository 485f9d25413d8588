"""The journal of a bisection, in the state folder: whole on the disk after each answer, so that nothing is tried twice
whatever ends the program. One bisection of a project is under way at a time.

Anybody may have written the file. So it holds names of candidates, which keep their grammars, and verdicts. The judge,
the recipe and the options of the model's server are not in it: they come from what is typed again, from recipes/, and
from the engine.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from builder.bisecting.candidate import BisectCandidate
from builder.bisecting.difference import Row
from builder.bisecting.session import JUDGES, Bisection, BisectOutlook, Judge
from builder.bisecting.trials import Trial
from builder.errors import ConflictError
from builder.lock import name_kinds
from builder.lock.value_kinds import WrongError
from builder.storage import atomic_file, file_lock, regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.project import Project

_FORMAT = 3
_FOUND_AGAIN = ("recipe", "recipe_before", "platform")
_LARGEST = 64 << 20
_POINT = name_kinds.VERSION.read
_DIGEST = re.compile("(?:[0-9a-f]{64})?")


@contextmanager
def locked(project: Project) -> Iterator[None]:
    """Holds the bisection of a project. Raises ConflictError where another process does."""
    atomic_file.make_folder(project.bisecting)
    try:
        with file_lock.locked(project.bisecting / "journal.lock", wait_seconds=0):
            yield
    except file_lock.LockHeldError as error:
        holder = f", process {error.holder}" if error.holder else ""
        raise ConflictError(
            f"a bisection is under way{holder}", hint="`builder bisect status` tells how far it is; ^C there pauses it"
        ) from None


def write(project: Project, bisection: Bisection) -> None:
    """Writes the journal, on the disk before this returns."""
    atomic_file.write(_path(project), f"{text_of(bisection)}\n".encode())


def read(project: Project) -> Bisection | None:
    """The bisection that is under way or was interrupted, None where there is none. Raises ConflictError for a file
    that holds none."""
    path = _path(project)
    try:
        return _parse(regular_file.read(path, _LARGEST).decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, WrongError):
        raise ConflictError(
            f"{project.relative(path)} is no journal of a bisection that this version of builder can read",
            hint="end it with the version that wrote it, `builder bisect stop`; or remove the file, and begin anew",
        ) from None


def remove(project: Project) -> None:
    """Forgets a bisection."""
    _path(project).unlink(missing_ok=True)


def text_of(bisection: Bisection) -> str:
    """The text of a journal."""
    data = {**asdict(bisection), "judge": asdict(bisection.judge.recorded)}
    kept = {key: value for key, value in data.items() if key not in _FOUND_AGAIN}
    return json.dumps({"format": _FORMAT, **kept}, indent=1, ensure_ascii=False)


def _parse(text: str) -> Bisection:
    data: dict[str, Any] = json.loads(text)
    if data.pop("format") != _FORMAT or data["judge"]["kind"] not in JUDGES or data.keys() & {*_FOUND_AGAIN}:
        raise ValueError("of another version")
    data["judge"] = Judge(**data["judge"])
    data["done"] = tuple(Trial(**{**trial, "candidate": _candidate(trial["candidate"])}) for trial in data["done"])
    data["rows"] = tuple(Row(**{**row, "points": tuple(map(_POINT, row["points"]))}) for row in data["rows"])
    data["waiting"] = _candidate(data["waiting"]) if data["waiting"] else None
    data["numbers"] = tuple(data["numbers"])
    if outlook := data.get("outlook"):
        data["outlook"] = BisectOutlook(**{**outlook, "axes": tuple(outlook["axes"])})
    name_kinds.REPOSITORY.read(data["repository"])
    bisection = Bisection(platform="", **data)
    flags = (bisection.find_fix, bisection.present_recipe, bisection.served, bisection.unstartable)
    if (
        not _DIGEST.fullmatch(bisection.judge.name)
        or not all(isinstance(word, str) for word in (bisection.target, bisection.started))
        or not all(isinstance(flag, bool) for flag in flags)
        or len(bisection.numbers) < 2
        or not all(type(number) is int for number in bisection.numbers)
    ):
        raise ValueError("other kinds of values")
    return bisection


def _candidate(data: dict[str, Any]) -> BisectCandidate:
    points = tuple((str(unit), _POINT(point)) for unit, point in data["points"])
    return BisectCandidate(int(data["old"]), int(data["new"]), tuple(map(str, data["taken"])), points)


def _path(project: Project) -> Path:
    return project.bisecting / "journal.json"
