"""Lines folded to fit the terminal: between words, and never within anything that the user may want to copy."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

import click

UNLIMITED = 10_000
_PLAIN_TERMINAL = 80
# Text in backquotes is a command or a name, which is never folded.
_ALONE = re.compile(r"^( *)`([^`]* [^`]*)`[.,;:]?$")
_WORD = re.compile(r"(?:`[^`]*`|\S)+")


def width(stream: TextIO | None = None) -> int:
    """Returns the columns of the terminal behind ``stream`` (by default standard output); UNLIMITED where a program
    reads it."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return UNLIMITED
    if (columns := os.environ.get("COLUMNS", "")).isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _PLAIN_TERMINAL
    except OSError:
        return _PLAIN_TERMINAL


def fold(line: str, columns: int, hanging: int = 2) -> list[str]:
    """Folds ``line`` into lines of at most ``columns``; those after the first are indented by ``hanging`` more.

    A word that is wider, such as a path or a digest, stays whole, and so does a command in backquotes. A long command
    that would not fit gets a line of its own, without backquotes and punctuation, so that it can be copied.
    """
    if columns_of(line) <= columns:
        return [line]
    start = line[: len(line) - len(line.lstrip())]
    first, *rest = _WORD.findall(line) or [""]
    lines, full = [start + first], False
    for word in rest:
        if not full and columns_of(lines[-1]) + 1 + columns_of(word) <= columns:
            lines[-1] += f" {word}"
            continue
        room = columns - columns_of(word)
        lines.append(" " * max(min(len(start) + hanging, room), 0) + word)
        full = "`" in word and " " in word and room < columns // 2
    return [lines[0], *(_ALONE.sub(r"\1\2", line) for line in lines[1:])]


def columns_of(text: str) -> int:
    """Returns the columns that ``text`` takes, its colour codes aside."""
    return len(click.unstyle(text)) if "\x1b" in text else len(text)
