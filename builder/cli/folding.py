"""Lines that fit the terminal: folded between words, and never within what somebody may want to copy."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

import click

UNLIMITED = 10_000
_PLAIN_TERMINAL = 80
# What stands in backquotes is a command or a name: its spaces are no place to fold.
_ALONE = re.compile(r"^( *)`([^`]* [^`]*)`[.,;:]?$")
_WORD = re.compile(r"(?:`[^`]*`|\S)+")


def width(stream: TextIO | None = None) -> int:
    """The columns to fill: those of the terminal behind ``stream`` (standard output where there is none given), and no
    limit where a program reads it."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return UNLIMITED
    if (said := os.environ.get("COLUMNS", "")).isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _PLAIN_TERMINAL
    except OSError:
        return _PLAIN_TERMINAL


def fold(line: str, columns: int, hanging: int = 2) -> list[str]:
    """``line`` as several lines of at most ``columns``, those after the first ``hanging`` deeper than it.

    A word that is wider, such as a path or a digest, stays whole, and so does a command in backquotes; a long one that
    would not fit on its line stands on one of its own, without what a shell would take for more than the command.
    """
    if _wide(line) <= columns:
        return [line]
    start = line[: len(line) - len(line.lstrip())]
    first, *rest = _WORD.findall(line) or [""]
    lines, full = [start + first], False
    for word in rest:
        if not full and _wide(lines[-1]) + 1 + _wide(word) <= columns:
            lines[-1] += f" {word}"
            continue
        room = columns - _wide(word)
        lines.append(" " * max(min(len(start) + hanging, room), 0) + word)
        full = "`" in word and " " in word and room < columns // 2
    return [lines[0], *(_ALONE.sub(r"\1\2", line) for line in lines[1:])]


def _wide(text: str) -> int:
    """The columns that ``text`` takes, without what colours it."""
    return len(click.unstyle(text))
