"""``.env`` of a checkout: assignments as bash reads simple ones, with nothing of it run.

A value may stand in quotes, ``export`` before the name, a comment behind. One that bash would compute (``$HOME``,
``$(…)``) is a problem of its line, and no assignment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.definitions.reading import read_text
from builder.errors import Location, Problem

if TYPE_CHECKING:
    from pathlib import Path

# The launcher there allows blanks beside the sign, which bash does not.
_ASSIGNMENT = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)", re.ASCII)
_EXPANSION = re.compile(r"\$[A-Za-z_0-9{(@*#?$!-]|`")
_COMMENT = re.compile(r"\s+#|\s*$")
_IN_DOUBLE_QUOTES = frozenset('"\\$`')


class _BadValueError(ValueError):
    """A value that cannot be read; the message says why, without the value."""


@dataclass(frozen=True)
class Assignment:
    """A variable, its value, and the line where it stands. A value may be a secret: no message shows it."""

    name: str
    value: str = field(repr=False)
    line: int


@dataclass(frozen=True)
class EnvFile:
    """The assignments in a file by name, and the problems of the lines that are none. Messages call it ``file``."""

    file: str
    assignments: dict[str, Assignment] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def value(self, name: str) -> str:
        """The value of a variable without blanks around it, empty where it has none."""
        assignment = self.assignments.get(name)
        return assignment.value.strip() if assignment else ""


def read(path: Path, file: str) -> EnvFile:
    """Reads the file at ``path``. Raises UsageError where it cannot be read, FileProblemsError where it is no text."""
    return parse(read_text(path, file), file)


def parse(text: str, file: str) -> EnvFile:
    """Parses the text of a file that messages call ``file``. Of a name that stands twice the last one counts."""
    assignments: dict[str, Assignment] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(stripped)
        if match is None:
            problems.append(Problem(Location(file, number), "no assignment NAME=VALUE: left out"))
            continue
        name = match["name"]
        try:
            value = _value(match["value"])
        except _BadValueError as error:
            problems.append(Problem(Location(file, number), f"{name}: {error}"))
            continue
        if name in assignments:
            first = assignments[name].line
            problems.append(
                Problem(Location(file, number), f"{name} stands in line {first} already: the last one counts")
            )
        assignments[name] = Assignment(name, value, number)
    return EnvFile(file, assignments, tuple(problems))


def _value(text: str) -> str:
    """The value that bash gives ``text``; blanks in it that bash would end it at belong to it, as in the launcher."""
    collected: list[str] = []
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise _BadValueError("its quote ' is not closed: left out")
            collected.append(text[at + 1 : end])
            at = end + 1
        elif letter == '"':
            part, at = _in_double_quotes(text, at + 1)
            collected.append(part)
        elif letter == "\\" and at + 1 < len(text):
            collected.append(text[at + 1])
            at += 2
        elif _COMMENT.match(text, at):
            break
        else:
            _refuse_expansion(text, at)
            collected.append(letter)
            at += 1
    return "".join(collected)


def _in_double_quotes(text: str, at: int) -> tuple[str, int]:
    """The text up to the closing quote, and the place behind that."""
    collected: list[str] = []
    while at < len(text):
        letter = text[at]
        if letter == '"':
            return "".join(collected), at + 1
        if letter == "\\" and text[at + 1 : at + 2] in _IN_DOUBLE_QUOTES:
            collected.append(text[at + 1])
            at += 2
            continue
        _refuse_expansion(text, at)
        collected.append(letter)
        at += 1
    raise _BadValueError('its quote " is not closed: left out')


def _refuse_expansion(text: str, at: int) -> None:
    if _EXPANSION.match(text, at):
        raise _BadValueError("bash would compute its value, which is not done here: left out")
