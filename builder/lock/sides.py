"""What a merge left in images.lock, taken apart: the lock of each side.

Git leaves markers where both branches changed the same lines; whoever deletes the markers and keeps both blocks leaves
a number that stands twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import Location, LockError, NewerLockError, Problem
from builder.lock import merging, parsing
from builder.lock.file_problems import MERGE, conflict_marks, lock_error
from builder.lock.nodes import Tree, read_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lock.model import ImageName, Lock


@dataclass(frozen=True)
class Side:
    """The text of one side, and for each of its lines the line in the file, from 1 on."""

    text: str
    lines: tuple[int, ...]


def locks(text: str, file: str) -> tuple[Lock, ...]:
    """The lock of every side in ``text``, in the order of the file; one alone where nothing stands twice.

    Raises LockError where a side is no lock, whatever else is wrong with it.
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
    """Whether there is no way to read a lock: neither as what a merge left, nor by a newer program that wrote it."""
    try:
        text = content.decode()
        locks(text, file)
    except NewerLockError:
        return False
    except (LockError, UnicodeDecodeError):
        return not conflict_marks(content.decode(errors="replace"))
    return False


def conflict_error(text: str, file: str) -> LockError:
    """Names every marker that git left, and every number that each side gave to another image, with both places."""
    problems = [Problem(Location(file, line), f"git conflict marker `{mark}`") for line, mark in conflict_marks(text)]
    sides = _of_conflict(text)
    if sides:
        problems += _clashes(sides, file)
    return lock_error(problems, MERGE)


def _clashes(sides: tuple[Side, Side], file: str) -> Iterator[Problem]:
    try:
        names = merging.clashes(*(parsing.parse(side.text, file) for side in sides))
        trees = [read_tree(side.text, file) for side in sides]
    except LockError:
        return  # the markers are said; what else is wrong is seen once they are gone
    for name in names:
        ours, theirs = _places(name, sides, trees)
        yield Problem(ours, f"{name} is given here, and to another image in {theirs}")


def _places(name: ImageName, sides: tuple[Side, Side], trees: list[Tree]) -> tuple[Location, Location]:
    """Where each side gives the number: the first line of its block that is not the other's as well."""
    block = ("images", name.repository, "numbers", str(name.number))
    paths = [path for path in trees[0].places if path[:4] == block and path in trees[1].places]
    found = []
    for path in paths:
        places = [tree.place(path) for tree in trees]
        lines = [side.lines[place.line - 1] for side, place in zip(sides, places, strict=True)]
        found.append(tuple(Location(p.file, line, p.column) for p, line in zip(places, lines, strict=True)))
    apart = next((pair for pair in found if pair[0] != pair[1]), found[0])
    return apart[0], apart[1]


def _of_conflict(text: str) -> tuple[Side, Side] | None:
    """Both sides of every conflict that git marked; None where it marked none, or the marks make no sense."""
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


def _of_numbers_that_stand_twice(text: str, file: str) -> tuple[Side, Side] | None:
    """One side without the second block of each number, one without the first."""
    twice = [found for found in read_tree(text, file).twice if found.is_number]
    if not twice:
        return None
    lines = list(enumerate(text.split("\n"), start=1))
    first = {line for found in twice for line in _block(lines, found.first)}
    again = {line for found in twice for line in _block(lines, found.again)}
    return _side([line for line in lines if line[0] not in again]), _side([ln for ln in lines if ln[0] not in first])


def _block(lines: list[tuple[int, str]], place: Location) -> Iterator[int]:
    """The lines of the block whose key stands at ``place``."""
    yield place.line
    for number, line in lines[place.line :]:
        if line.strip() and len(line) - len(line.lstrip(" ")) < place.column:
            return
        yield number


def _side(lines: list[tuple[int, str]]) -> Side:
    return Side("\n".join(line for _, line in lines), tuple(number for number, _ in lines))
