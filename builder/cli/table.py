"""Plain tables that fit the terminal. rich would do it too, at 49 ms of import for a command that may take 150."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.cli import folding, terminal_text
from builder.cli.output import print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = "  "
# The last column is not made narrower than this unless its text is.
_NARROWEST = 16
_NOTHING = "-"


def width() -> int:
    """Returns the columns of the terminal; no limit where a program reads the output."""
    return folding.width()


def lines(headings: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Returns the lines of a table, the headings first.

    A last column that does not fit is folded between words. It is put below its row if one of its words does not fit or
    if it gets much shorter that way; below every row if the other columns leave it no room. If even those do not fit,
    long cells of the first column get a line of their own.
    """
    rows = [[*map(terminal_text.on_one_line, cells), terminal_text.visible(last)] for *cells, last in rows]
    everything = (headings, *rows)
    widths = [max(folding.columns_of(row[n]) for row in everything) for n in range(len(headings) - 1)]
    least = min(_NARROWEST, max(folding.columns_of(row[-1]) for row in everything))
    if widths and _indent(widths) - len(GAP) > columns:
        widths[0] = max(len(headings[0]), columns - _indent(widths[1:]) - len(GAP) - least)
    is_below = bool(widths) and columns - _indent(widths) < least
    shown = []
    for row in everything:
        *cells, last = row
        if cells and folding.columns_of(cells[0]) > widths[0]:
            shown.append(cells[0])
            cells[0] = ""
            if not any((*cells, last)):
                continue
        start = GAP.join([*(_padded(cell, wide) for cell, wide in zip(cells, widths, strict=True)), ""])
        if is_below:
            shown += _below(start, "" if row is headings else last, columns)
        else:
            shown += _row(start, last, columns)
    return shown


def _indent(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * len(widths)


def _row(start: str, last: str, columns: int) -> list[str]:
    """The lines of a row; ``start`` is the text before its ``last`` column."""
    indent = folding.columns_of(start)
    room = columns - indent
    beside, below = _folded(last, room), _folded(last, columns - len(GAP))
    if any(folding.columns_of(line) > room for line in beside) or len(beside) > 2 * len(below):
        return _below(start, last, columns)
    return [(start + beside[0]).rstrip(), *(" " * indent + line for line in beside[1:])]


def _padded(cell: str, columns: int) -> str:
    return cell + " " * (columns - folding.columns_of(cell))


def _below(start: str, last: str, columns: int) -> list[str]:
    below = _folded(last, columns - len(GAP)) if last not in {"", _NOTHING} else []
    return [*([start.rstrip()] if start.strip() or not below else []), *(GAP + line for line in below)]


def _folded(text: str, columns: int) -> list[str]:
    return [folded for line in text.split("\n") for folded in folding.fold(line, columns, hanging=0)]


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table as wide as the terminal."""
    for number, line in enumerate(lines(headings, rows, width())):
        print_line(terminal_text.styled(line, bold=True) if number == 0 else line)


def print_facts(facts: Sequence[tuple[str, str]], indent: str = "") -> None:
    """Prints names and values in two columns."""
    for line in lines(("", ""), facts, width() - len(indent))[1:]:
        print_line(indent + line)
