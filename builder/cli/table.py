"""Plain tables that fit the terminal. rich would do it too, at 49 ms of import for a command that may take 150."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

GAP = "  "


def width() -> int:
    """The columns to fill: the terminal's, and no limit where the output is read by a program."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 10_000


def lines(headings: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """The table's lines. The last column is folded where it does not fit; the others keep their width."""
    widths = [max(len(row[n]) for row in (headings, *rows)) for n in range(len(headings) - 1)]
    indent = sum(widths) + len(GAP) * len(widths)
    room = max(columns - indent, 16)
    shown = []
    for row in (headings, *rows):
        start = GAP.join([*(cell.ljust(wide) for cell, wide in zip(row, widths, strict=False)), ""])
        folded = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        shown += [(start + folded[0]).rstrip(), *(" " * indent + line for line in folded[1:])]
    return shown


def show(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table as wide as the terminal."""
    for number, line in enumerate(lines(headings, rows, width())):
        click.echo(click.style(line, bold=True) if number == 0 else line)
