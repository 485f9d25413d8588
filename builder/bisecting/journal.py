"""The journal of a bisection, in the state folder: whole on the disk after each answer, so that nothing is tried twice
whatever ends the program. One bisection of a project is under way at a time.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from builder.bisecting.candidate import BisectCandidate
from builder.bisecting.difference import Point, Row
from builder.bisecting.session import JUDGES, Bisection, BisectOutlook, DoneTrial, Judge
from builder.bisecting.trials import Trial
from builder.errors import ConflictError
from builder.storage import atomic_file, file_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.project import Project

_FORMAT = 1
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


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
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except _UNREADABLE:
        raise ConflictError(
            f"{project.relative(path)} is no journal of a bisection that this version of builder can read",
            hint="end it with the version that wrote it, `builder bisect stop`; or remove the file, and begin anew",
        ) from None


def remove(project: Project) -> None:
    """Forgets a bisection."""
    _path(project).unlink(missing_ok=True)


def text_of(bisection: Bisection) -> str:
    """The text of a journal, which `parse` reads."""
    return json.dumps({"format": _FORMAT, **asdict(bisection)}, indent=1, ensure_ascii=False)


def parse(text: str) -> Bisection:
    """The bisection in the text of a journal. Raises ValueError, KeyError, TypeError, AttributeError or RecursionError
    for any other text."""
    data: dict[str, Any] = json.loads(text)
    if data.pop("format") != _FORMAT or data["judge"]["kind"] not in JUDGES:
        raise ValueError("of another version")
    data["judge"] = Judge(**data["judge"])
    data["done"] = tuple(_done(each) for each in data["done"])
    data["rows"] = tuple(
        Row(**{**row, "points": tuple(Point(**point) for point in row["points"])}) for row in data["rows"]
    )
    data["waiting"] = _candidate(data["waiting"]) if data["waiting"] else None
    data["numbers"] = tuple(data["numbers"])
    if outlook := data.get("outlook"):
        data["outlook"] = BisectOutlook(**{**outlook, "axes": tuple(outlook["axes"])})
    texts = [data[key] for key in ("target", "repository", "platform", "started", "recipe", "recipe_before", "serving")]
    texts += [*data["served"], *data["served"].values()]
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(n, int) for n in data["numbers"]):
        raise TypeError("other kinds of values")
    if len(data["numbers"]) < 2:
        raise ValueError("no two numbers")
    return Bisection(**data)


def _done(data: dict[str, Any]) -> DoneTrial:
    trial = data["trial"]
    return DoneTrial(**{**data, "trial": Trial(**{**trial, "candidate": _candidate(trial["candidate"])})})


def _candidate(data: dict[str, Any]) -> BisectCandidate:
    points = tuple((str(unit), str(point)) for unit, point in data["points"])
    return BisectCandidate(int(data["old"]), int(data["new"]), tuple(map(str, data["taken"])), points)


def _path(project: Project) -> Path:
    return project.bisecting / "journal.json"
