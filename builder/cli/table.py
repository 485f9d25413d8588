"""Plain tables that fit the terminal. rich would do it too, at 49 ms of import for a command that may take 150."""

from __future__ import annotations

from collections.abc import Sequence

import click

from builder.cli import folding

GAP = "  "
# A last column that is narrower is no help: the first one then stands on a line of its own where it is long.
_NARROW = 16


def width() -> int:
    """The columns to fill: the terminal's, and no limit where the output is read by a program."""
    return folding.width()


def lines(headings: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """The table's lines. The last column is folded between words where it does not fit, and stands below its row where
    one of its words does not. The others keep their width, but for a first one that leaves no room."""
    everything = (headings, *rows)
    widths = [max(len(row[n]) for row in everything) for n in range(len(headings) - 1)]
    if widths and columns - _indent(widths) < _NARROW:
        widths[0] = max(len(headings[0]), columns - _indent(widths[1:]) - len(GAP) - _NARROW)
    shown = []
    for row in everything:
        cells = row[:-1]
        if cells and len(cells[0]) > widths[0]:
            shown.append(cells[0])
            cells = ("", *cells[1:])
        start = GAP.join([*(cell.ljust(wide) for cell, wide in zip(cells, widths, strict=True)), ""])
        shown += _row(start, row[-1], columns)
    return shown


def _indent(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * len(widths)


def _row(start: str, last: str, columns: int) -> list[str]:
    """A row whose last column is ``last``; ``start`` is all before it."""
    indent = len(start)
    first, *rest = _folded(last, columns - indent)
    if all(len(line) <= columns - indent for line in (first, *rest)):
        return [(start + first).rstrip(), *(" " * indent + line for line in rest)]
    below = [GAP + line for line in _folded(last, columns - len(GAP))]
    return [start.rstrip(), *below] if start.strip() else below


def _folded(text: str, columns: int) -> list[str]:
    return [folded for line in text.split("\n") for folded in folding.fold(line, columns, hanging=0)]


def show(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table as wide as the terminal."""
    for number, line in enumerate(lines(headings, rows, width())):
        click.echo(click.style(line, bold=True) if number == 0 else line)


def show_facts(facts: Sequence[tuple[str, str]], indent: str = "") -> None:
    """Prints names and values, for reading across."""
    for line in lines(("", ""), facts, width() - len(indent))[1:]:
        click.echo(indent + line)
