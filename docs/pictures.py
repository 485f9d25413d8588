"""Pictures of terminal screens for these pages: SVG, in a light and a dark theme, each line where the terminal had
it."""

from __future__ import annotations

import html
import inspect
import io
import itertools
import operator
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from docs import terminal

if TYPE_CHECKING:
    from pyte.screens import Char

HERE = Path(__file__).parent / "images"
# Background, text, and the eight colours of a terminal; each reads at 4.5:1 or better on its background.
THEMES = {
    "light": TerminalTheme(
        (246, 248, 250),
        (31, 35, 40),
        [
            (31, 35, 40),
            (193, 32, 44),
            (17, 99, 41),
            (122, 78, 0),
            (9, 105, 218),
            (130, 80, 223),
            (21, 101, 112),
            (87, 96, 106),
        ],
    ),
    "dark": TerminalTheme(
        (22, 27, 34),
        (230, 237, 243),
        [
            (72, 79, 88),
            (255, 123, 114),
            (86, 211, 100),
            (227, 179, 65),
            (121, 192, 255),
            (210, 168, 255),
            (86, 212, 221),
            (177, 186, 196),
        ],
    ),
}
# rich's own frame loads a font from the network; every browser has one of fixed width.
_RICH_FORMAT: str = inspect.signature(Console.export_svg).parameters["code_format"].default
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\n", "", _RICH_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, ", "ui-monospace, "
)
_TEXT = re.compile(r'<text class="[^"]*-r\d+" .*? y="([\d.]+)"[^>]*>(.*?)</text>', re.DOTALL)


def save(name: str, session: list[tuple[str, terminal.Screen]], replaced: tuple[str, str]) -> None:
    """Writes ``NAME-light.svg`` and ``NAME-dark.svg`` of commands, each with the screen that it left. ``replaced`` are
    two names of equal length: the second is shown in place of the first."""
    lines = [line for command, screen in session for line in (_prompt(command), *_lines(screen, replaced))]
    for theme, colours in THEMES.items():
        console = Console(
            file=io.StringIO(), width=terminal.COLUMNS, record=True, force_terminal=True, color_system="truecolor"
        )
        for line in lines:
            console.print(line, no_wrap=True, crop=False, overflow="ignore")
        svg = console.export_svg(title="", theme=colours, code_format=_FORMAT, unique_id=f"{name}-{theme}")
        HERE.mkdir(exist_ok=True)
        (HERE / f"{name}-{theme}.svg").write_text(svg, encoding="utf-8")


def words(svg: str) -> str:
    """Returns the text in a picture, line by line."""
    lines: dict[float, str] = {}
    for y, text in _TEXT.findall(svg):
        lines[float(y)] = lines.get(float(y), "") + html.unescape(text).replace("\xa0", " ")
    return "\n".join(lines[y] for y in sorted(lines))


def _prompt(command: str) -> Text:
    return Text.assemble(("$ ", "bold"), (command, "bold"))


def _lines(screen: terminal.Screen, replaced: tuple[str, str]) -> list[Text]:
    """The lines of the screen in colour, without the empty ones at its end."""
    last = max((y for y, line in enumerate(screen.display) if line.strip()), default=-1)
    return [_line(screen, y, replaced) for y in range(last + 1)]


def _line(screen: terminal.Screen, y: int, replaced: tuple[str, str]) -> Text:
    cells = [screen.buffer[y][x] for x in range(screen.columns)]
    shown = "".join(cell.data for cell in cells).replace(*replaced).rstrip()
    styled = ((character, _style(cell)) for character, cell in zip(shown, cells, strict=False))
    runs = itertools.groupby(styled, key=operator.itemgetter(1))
    return Text.assemble(*(("".join(character for character, _ in run), style) for style, run in runs))


def _style(cell: Char) -> Style:
    colour = None if cell.fg == "default" else cell.fg.replace("brown", "yellow").replace("bright", "bright_")
    return Style(color=colour, bold=cell.bold)
