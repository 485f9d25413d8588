"""The journal of an upgrade, in the state folder: written before each step, so that one that was killed goes on there.

One upgrade of a model or a definition runs at a time, by a lock that ends with its process.

Anybody may have written the file: its names keep the grammars of images.lock, and how the model is served is not in it.
That comes from what is typed again, and from the engine.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from builder.errors import ConflictError
from builder.lock import name_kinds
from builder.lock.value_kinds import WrongError
from builder.storage import atomic_file, file_lock, regular_file
from builder.upgrading.steps import RESULTS, STAGES, Upgrade

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.project import Project

_FORMAT = 2
_LARGEST = 1 << 20


@contextmanager
def locked(project: Project, subject: str) -> Iterator[None]:
    """Holds the upgrade of ``subject``. Raises ConflictError where another process holds it."""
    atomic_file.make_folder(project.upgrading)
    try:
        with file_lock.locked(_path(project, subject).with_suffix(".lock"), wait_seconds=0):
            yield
    except file_lock.LockHeldError as error:
        holder = f", process {error.holder}" if error.holder else ""
        raise ConflictError(
            f"an upgrade of {subject} is under way{holder}", hint="wait for it; ^C there puts everything back"
        ) from None


def write(project: Project, subject: str, upgrade: Upgrade) -> None:
    """Writes the journal, on the disk before this returns."""
    text = json.dumps({"format": _FORMAT, **asdict(upgrade)}, indent=1, ensure_ascii=False)
    atomic_file.write(_path(project, subject), f"{text}\n".encode())


def read(project: Project, subject: str) -> Upgrade | None:
    """The upgrade that is unfinished, None where there is none. Raises ConflictError for a file that holds none."""
    path = _path(project, subject)
    try:
        return _upgrade(json.loads(regular_file.read(path, _LARGEST)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, WrongError):
        raise ConflictError(
            f"{project.relative(path)} is no journal of an upgrade that this version of builder can read",
            hint="end it with the version that wrote it, or remove the file: pins and pointers move only at the end",
        ) from None


def remove(project: Project, subject: str) -> None:
    """Forgets an upgrade that is finished."""
    _path(project, subject).unlink(missing_ok=True)


def unfinished(project: Project) -> tuple[str, ...]:
    """The subjects whose upgrade is not over, and that no process holds."""
    files = sorted(project.upgrading.glob("*.json"))
    locks = {path: path.with_suffix(".lock") for path in files}
    return tuple(unquote(path.stem) for path, lock in locks.items() if not (lock.exists() and file_lock.is_held(lock)))


def _path(project: Project, subject: str) -> Path:
    return project.upgrading / f"{quote(subject, safe='')}.json"


def _upgrade(data: dict[str, Any]) -> Upgrade:
    if data.pop("format") != _FORMAT or data["stage"] not in STAGES or data["result"] not in RESULTS:
        raise ValueError("of another version")
    data["models"], data["why"] = tuple(data["models"]), tuple(data["why"])
    if not all(isinstance(text, str) for text in (data["target"], data["started"], *data["why"])):
        raise ValueError("not text")
    if not isinstance(data["served"], bool) or not isinstance(data.get("older", False), bool):
        raise TypeError("not a flag")
    for model in data["models"]:
        name_kinds.MODEL.read(model)
    for source, ref in data["update"].items():
        name_kinds.PART.read(source)
        name_kinds.or_nothing(name_kinds.LINE).read(ref)
    for image in filter(None, (data["before"], data["candidate"])):
        repository, _, number = image.rpartition(":")
        name_kinds.REPOSITORY.read(repository)
        int(number)
    return Upgrade(**data)
