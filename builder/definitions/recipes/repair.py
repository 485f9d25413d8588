"""A recipe's text, repaired in memory so that all its problems can be reported at once.

The file is never changed, and a repaired recipe is never served: every repair is reported as a problem.
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
    """The repaired ``text`` of a recipe; ``problems`` are its differences from the text as written."""

    text: str
    problems: tuple[Problem, ...]
    edits: dict[int, tuple[_Edit, ...]]

    def written(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """``problems`` of ``text``, at their locations in the file."""
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
    """Repairs wrong characters and lost indentation in ``text``. ``keys`` are the valid keys of a recipe."""
    lines = text.split("\n")
    problems: list[Problem] = []
    edits: dict[int, tuple[_Edit, ...]] = {}
    for correction in typography.find(text, keys):
        problems.append(Problem(Location(file, correction.number, correction.column + 1), correction.message))
        edits[correction.number] = (
            *edits.get(correction.number, ()),
            _Edit(correction.column, correction.length, correction.replacement),
        )
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
