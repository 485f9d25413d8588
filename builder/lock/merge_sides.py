"""The sides of a merge that was left in images.lock: the lock of each branch.

Git leaves markers where both branches changed the same lines; whoever deletes the markers and keeps both blocks leaves
a number that stands twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import Location, LockError, NewerLockError, Problem
from builder.lock import merging, parsing
from builder.lock.file_problems import MERGE, conflict_marks, lock_error
from builder.lock.yaml_tree import Tree, read_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lock.model import ImageName, Lock


@dataclass(frozen=True)
class MergeSide:
    """The text of one side, and the number of each of its lines in the file, from 1 on."""

    text: str
    lines: tuple[int, ...]


def locks(text: str, file: str) -> tuple[Lock, ...]:
    """The lock of every side in ``text``, in the order of the file; a single one where nothing stands twice.

    Raises LockError where a side cannot be read as a lock.
    """
    try:
        if conflict_marks(text):
            raise conflict_error(text, file)
        return (parsing.parse(text, file),)
    except LockError:
        sides = _of_conflict(text) or _of_numbers_that_stand_twice(text, file)
        if not sides:
            raise
    return tuple(lock for side in sides for lock in locks(side.text, file))


def is_lost(content: bytes, file: str) -> bool:
    """True if nothing can be read as a lock: neither the sides of a merge, nor by a newer version of this program."""
    try:
        text = content.decode()
        locks(text, file)
    except NewerLockError:
        return False
    except (LockError, UnicodeDecodeError):
        return not conflict_marks(content.decode(errors="replace"))
    return False


def conflict_error(text: str, file: str) -> LockError:
    """The error that names every marker that git left, and every number that the sides gave to two images, with both
    places."""
    problems = [Problem(Location(file, line), f"git conflict marker `{mark}`") for line, mark in conflict_marks(text)]
    sides = _of_conflict(text)
    if sides:
        problems += _clashes(sides, file)
    return lock_error(problems, MERGE)


def _clashes(sides: tuple[MergeSide, MergeSide], file: str) -> Iterator[Problem]:
    try:
        names = merging.clashes(*(parsing.parse(side.text, file) for side in sides))
        trees = [read_tree(side.text, file) for side in sides]
    except LockError:
        return  # the markers are reported; anything else is reported once they are gone
    for name in names:
        ours, theirs = _places(name, sides, trees)
        yield Problem(ours, f"{name} is given here, and to another image in {theirs}")


def _places(name: ImageName, sides: tuple[MergeSide, MergeSide], trees: list[Tree]) -> tuple[Location, Location]:
    """The place where each side gives the number: the first line of its block that differs from the other's."""
    block = ("images", name.repository, "numbers", str(name.number))
    paths = [path for path in trees[0].places if path[:4] == block and path in trees[1].places]
    pairs = []
    for path in paths:
        places = [tree.place(path) for tree in trees]
        lines = [side.lines[place.line - 1] for side, place in zip(sides, places, strict=True)]
        pairs.append(tuple(Location(p.file, line, p.column) for p, line in zip(places, lines, strict=True)))
    apart = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return apart[0], apart[1]


def _of_conflict(text: str) -> tuple[MergeSide, MergeSide] | None:
    """Both sides of every conflict that git marked; None where it marked none, or the markers are out of order."""
    marks = dict(conflict_marks(text))
    ours: list[tuple[int, str]] = []
    theirs: list[tuple[int, str]] = []
    both = [ours, theirs]
    into = both
    expected = "<"
    for number, line in enumerate(text.split("\n"), start=1):
        mark = marks.get(number, "")[:1]
        if not mark:
            for side in into:
                side.append((number, line))
        elif mark not in expected:
            return None
        else:
            into = {"<": [ours], "|": [], "=": [theirs], ">": both}[mark]
            expected = {"<": "|=", "|": "=", "=": ">", ">": "<"}[mark]
    if not marks or expected != "<":
        return None
    return _side(ours), _side(theirs)


def _of_numbers_that_stand_twice(text: str, file: str) -> tuple[MergeSide, MergeSide] | None:
    """One side without the second block of each number, the other without the first."""
    numbers = [key for key in read_tree(text, file).duplicates if key.is_number]
    if not numbers:
        return None
    lines = list(enumerate(text.split("\n"), start=1))
    first = {line for number in numbers for line in _block(lines, number.first)}
    again = {line for number in numbers for line in _block(lines, number.again)}
    return _side([line for line in lines if line[0] not in again]), _side([ln for ln in lines if ln[0] not in first])


def _block(lines: list[tuple[int, str]], place: Location) -> Iterator[int]:
    """The lines of the block whose key stands at ``place``."""
    yield place.line
    for number, line in lines[place.line :]:
        if line.strip() and len(line) - len(line.lstrip(" ")) < place.column:
            return
        yield number


def _side(lines: list[tuple[int, str]]) -> MergeSide:
    return MergeSide("\n".join(line for _, line in lines), tuple(number for number, _ in lines))
