"""images.lock as data. A file with anything wrong in it is refused whole, with the place of everything that is.

Unlike a file that people write, a lock that is nearly right is not worth guessing at: it decides which image runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import LockError, NewerLockError, Place, Problem
from builder.lock import records
from builder.lock.checks import WrongError
from builder.lock.faults import CORRECT, RENUMBER, TAKE_BACK, conflict_marks, lock_error, refuse_cut_off
from builder.lock.lines import read_layout
from builder.lock.model import VERSION, Lock

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lock.nodes import Tree


def read(path: Path) -> Lock:
    """The lock in ``path``; an empty one where there is no such file. Raises LockError as ``parse`` does, and for a
    file that cannot be opened."""
    content = read_bytes(path)
    return Lock() if content is None else parse_bytes(content, path.name)


def read_bytes(path: Path) -> bytes | None:
    """What ``path`` holds, None where there is no such file. Raises LockError where it cannot be opened."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LockError(f"{path} cannot be read: {error.strerror}", hint="give it to the user who runs this") from None


def parse_bytes(content: bytes, file: str) -> Lock:
    """As ``parse``, for the bytes of a file. Raises LockError where they are not UTF-8, too."""
    try:
        return parse(content.decode(), file)
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        place = Place(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise lock_error([Problem(place, "not UTF-8 text")], TAKE_BACK) from None


def parse(content: str, file: str = "images.lock") -> Lock:
    """The lock that the text says; ``file`` is what errors call it. Raises LockError, with every problem found, for a
    conflict marker, a file cut off, invalid YAML, a newer version, an unknown key, a wrong value, and a key or number
    that stands twice."""
    if conflict_marks(content):
        from builder.lock import sides

        raise sides.conflict_error(content, file)
    refuse_cut_off(content, file)
    data = read_layout(content)
    if data is not None:
        try:
            return records.lock_of(data)
        except WrongError:
            pass  # read again below, with places
    return _parse_yaml(content, file)


def _parse_yaml(content: str, file: str) -> Lock:
    from builder.lock.nodes import read_tree

    tree = read_tree(content, file)
    _refuse_other_version(tree)
    try:
        lock = records.lock_of(tree.data)
    except WrongError as error:
        found = [Problem(tree.place(path), message) for path, message in error.problems]
        raise lock_error([*tree.problems, *found], CORRECT) from None
    if tree.problems:
        twice = len(tree.twice) == len(tree.problems) and all(found.is_number for found in tree.twice)
        raise lock_error(tree.problems, RENUMBER if twice else CORRECT)
    return lock


def _refuse_other_version(tree: Tree) -> None:
    version = tree.data.get("version") if isinstance(tree.data, dict) else None
    if isinstance(version, str) and version.isdecimal() and version != str(VERSION):
        message = f"{tree.file} is version {version[:20]}; this builder reads {VERSION}"
        problem = Problem(tree.place(("version",)), message)
        raise NewerLockError(str(problem), hint="update builder, or take back with git a lock that this one wrote")
