"""The journal: which number is being given, or which pointer moved, at this moment.

images.lock is the record, and writing it is the moment at which a change has happened. What belongs to the change and
lies elsewhere (the tags in the engine, the build directory) is announced here first, so that whoever takes the writer's
lock next can finish the change of a killed process or undo it (``builder.numbered.images_lock``).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import LockError
from builder.lock.model import ImageName
from builder.lock.name_kinds import REPOSITORY
from builder.lock.value_kinds import WrongError
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.project import Project

_ENGINE_ID = re.compile("(?:sha256:[0-9a-f]{64})?")
_LARGEST = 1 << 16
_NO_NUMBER = 10**18  # images.lock holds smaller ones


@dataclass(frozen=True)
class Entry:
    """A change to a repository: ``name`` is the number that is given, removed, or made current. ``engine_id`` is the
    engine's id of an image that has the number only if images.lock says so; empty where only the pointer moves."""

    name: ImageName
    engine_id: str
    path: Path


def write(project: Project, name: ImageName, engine_id: str) -> None:
    """Announces a change, on the disk before this returns. A repository has one entry: the last one counts."""
    from builder.storage import atomic_file

    folder = project.journal
    atomic_file.make_folder(folder)
    content = json.dumps({"repository": name.repository, "number": name.number, "engine_id": engine_id})
    atomic_file.write_alone(folder / f"{name.repository.replace('/', '_')}.json", content.encode())


def is_empty(project: Project) -> bool:
    """True if nobody is changing a number, and nobody was killed doing so."""
    return not any(project.journal.glob("*"))


def entries(project: Project) -> Iterator[Entry]:
    """The changes that were announced. One that another process finishes meanwhile is left out. Raises LockError for a
    file that announces none: what is undone by it is deleted."""
    for path in sorted(project.journal.glob("*.json")):
        try:
            yield _entry(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, RecursionError, WrongError):
            raise LockError(
                f"{project.relative(path)} announces no change that this program makes",
                hint="find out where it came from, and remove it; `builder verify` then tells what does not agree",
            ) from None


def _entry(path: Path) -> Entry:
    announced = json.loads(regular_file.read(path, _LARGEST))
    number, engine_id = announced["number"], announced["engine_id"]
    if type(number) is not int or not 0 <= number < _NO_NUMBER or not _ENGINE_ID.fullmatch(engine_id):
        raise ValueError(f"number {number} of {engine_id}")
    return Entry(ImageName(REPOSITORY.read(announced["repository"]), number), engine_id, path)


def remove_unwritten(project: Project) -> None:
    """Removes what a process left that was killed before it had announced anything. The writer's lock must be held."""
    for path in project.journal.glob("*.new"):
        path.unlink()
