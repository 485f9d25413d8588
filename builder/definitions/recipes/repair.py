"""A recipe's text as it was meant, so that everything wrong in it can be told at once.

Nothing is repaired in the file, and what was repaired here is never served: every repair is a problem that is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes import indentation, typography
from builder.errors import Location, Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


@dataclass(frozen=True)
class _Edit:
    column: int
    length: int
    new: str


@dataclass(frozen=True)
class RepairedText:
    """``text`` is what was meant; ``problems`` are where it differs from what was written."""

    text: str
    problems: tuple[Problem, ...]
    edits: dict[int, tuple[_Edit, ...]]

    def written(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Problems found in ``text``, at the places where the file has them."""
        return tuple(Problem(self._as_written(problem.location), problem.message) for problem in problems)

    def _as_written(self, location: Location) -> Location:
        column, shift = location.column - 1, 0
        for edit in self.edits.get(location.line, ()):
            start = edit.column + shift
            if column < start:
                break
            if column < start + len(edit.new):
                return Location(location.file, location.line, edit.column + 1)
            shift += len(edit.new) - edit.length
        return Location(location.file, location.line, column - shift + 1)


def repair(text: str, file: str, keys: Collection[str]) -> RepairedText:
    """What ``text`` was meant to be, where its characters and its indentation tell. ``keys`` are those of a recipe."""
    lines = text.split("\n")
    problems: list[Problem] = []
    edits: dict[int, tuple[_Edit, ...]] = {}
    for found in typography.find(text, keys):
        problems.append(Problem(Location(file, found.number, found.column + 1), found.message))
        edits[found.number] = (*edits.get(found.number, ()), _Edit(found.column, found.length, found.meant))
    for number, changes in edits.items():
        lines[number - 1] = _edited(lines[number - 1], changes)
    for lost in indentation.find("\n".join(lines), keys):
        problems.append(Problem(Location(file, lost.numbers[0]), lost.message))
        for number in lost.numbers:
            edits[number] = (_Edit(0, 0, indentation.STEP), *edits.get(number, ()))
            lines[number - 1] = indentation.STEP + lines[number - 1]
    return RepairedText("\n".join(lines), tuple(problems), edits)


def _edited(line: str, edits: tuple[_Edit, ...]) -> str:
    for edit in reversed(edits):
        line = line[: edit.column] + edit.new + line[edit.column + edit.length :]
    return line
