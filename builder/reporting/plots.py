"""The history of a model as a drawing: lines with their band of noise over the numbers, placed in whole pixels.

Drawn by hand: a dozen lines and their labels need no library, and the page no script.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from builder.reporting import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from builder.reporting.page import PageFigure, PageStep

_COLUMN, _LEFT, _RIGHT = 36, 64, 84
_STRIP, _GAP, _READOUT, _NARROWEST = 64, 26, 92, 560
_PHONE = 330  # what the narrowest phones show of it
_LETTER = 6  # the width of one, about
_UNITS = {"bytes": "GB"}
# The title and the height of each figure's panel.
_PANELS = {
    "tg": ("decode at depth", 130),
    "acceptance": ("acceptance of drafts", 74),
    "memory_floor": ("memory left", 74),
}


@dataclass(frozen=True)
class PlotColumn:
    """A number on the axis. ``step`` is its place in the history; ``side`` says on which side of ``x`` its text is.
    ``repository`` tells numbers of several repositories apart; empty in a history of one."""

    x: int
    left: int
    step: PageStep
    label: str
    side: str
    repository: str


@dataclass(frozen=True)
class PlotLine:
    """A figure over the numbers, as paths: ``line``, its ``band`` of one standard deviation, the ``dots`` of runs that
    count and the ``stale`` ones. It is told from others by ``order``, and by the ``label`` at its end."""

    label: str
    order: int
    line: str
    band: str
    dots: str
    stale: str
    label_x: int
    label_y: int


@dataclass(frozen=True)
class PlotPanel:
    """The lines of one quantity, with the ``ticks`` of its axis: their heights and labels."""

    title: str
    top: int
    bottom: int
    ticks: tuple[tuple[int, str], ...]
    lines: tuple[PlotLine, ...]


@dataclass(frozen=True)
class PlotMove:
    """A move from one number to another, as the path of an arc."""

    path: str
    is_back: bool


@dataclass(frozen=True)
class HistoryPlot:
    """The whole drawing, in pixels. ``readout`` is where the text of a number begins that is pointed at. ``is_long`` is
    true where a phone does not show the newest number unless the drawing is scrolled to its end."""

    width: int
    height: int
    column: int
    right: int
    strip: int
    readout: int
    columns: tuple[PlotColumn, ...]
    moves: tuple[PlotMove, ...]
    panels: tuple[PlotPanel, ...]
    profile: str
    is_long: bool


@dataclass(frozen=True)
class _Point:
    x: int
    figure: PageFigure
    protocol: str
    is_stale: bool


def of(steps: Sequence[PageStep]) -> HistoryPlot:
    """The drawing of these steps."""
    wide = max(_COLUMN, min(84, 900 // max(1, len(steps))))
    right = _LEFT + wide * len(steps)
    repositories = _repositories(steps, wide // _LETTER)
    columns = tuple(
        PlotColumn(
            _LEFT + wide * place + wide // 2,
            _LEFT + wide * place,
            step,
            step.image.rpartition(":")[2],
            "start" if place < len(steps) / 2 else "end",
            repositories[place],
        )
        for place, step in enumerate(steps)
    )
    profile = figures.profile_of(steps)
    panels = tuple(_panels(columns, profile, right))
    bottom = panels[-1].bottom if panels else _STRIP
    return HistoryPlot(
        width=max(_NARROWEST, right + _RIGHT),
        column=wide,
        height=bottom + _GAP + _READOUT,
        right=right,
        strip=_STRIP - 22,
        readout=bottom + _GAP + 8,
        columns=columns,
        moves=tuple(_moves(columns)),
        panels=panels,
        profile=profile,
        is_long=right > _PHONE,
    )


def _repositories(steps: Sequence[PageStep], longest: int) -> list[str]:
    """The repository of each step, by the part that differs, where they are of several; else empty texts."""
    names = [step.image.rpartition(":")[0] for step in steps]
    if len(set(names)) < 2:
        return [""] * len(names)
    parts = [re.split("(?<=[-/])", name) for name in names]
    # The last part of a name is never left out.
    alike = sum(
        1 for _ in takewhile(lambda each: len(set(each)) == 1, zip(*(part[:-1] for part in parts), strict=False))
    )
    texts = ["".join(part[alike:]) for part in parts]
    return [text if len(text) <= longest else f"{text[: longest - 1]}…" for text in texts]


def _panels(columns: Sequence[PlotColumn], profile: str, right: int) -> Iterator[PlotPanel]:
    top = _STRIP + _GAP
    for name in figures.DRAWN:
        title, height = _PANELS[name]
        keys = figures.wanted([column.step for column in columns], name, profile)
        series = [list(_points(columns, key, profile)) for key in keys]
        if not series:
            continue
        low, high, ticks = _scale([point.figure for points in series for point in points])
        bottom = top + height

        def y(value: float, low: float = low, high: float = high, bottom: int = bottom, height: int = height) -> int:
            return round(bottom - (value - low) / (high - low) * height)

        unit = series[0][0].figure.unit
        lines = [_line(points, order, y, right) for order, points in enumerate(series)]
        shown = _UNITS.get(unit, unit if unit != "ratio" else "")
        yield PlotPanel(
            f"{title}, {shown}" if shown else title,
            top,
            bottom,
            tuple((y(tick), _tick(tick, unit)) for tick in ticks),
            tuple(_spread_labels(lines)),
        )
        top = bottom + _GAP


def _points(columns: Sequence[PlotColumn], key: tuple[object, ...], profile: str) -> Iterator[_Point]:
    for column in columns:
        run = figures.measured(column.step, profile)
        if run and (figure := figures.figure_at(run, key)):
            yield _Point(column.x, figure, run.protocol, bool(run.stale))


def _line(points: Sequence[_Point], order: int, height: Callable[[float], int], right: int) -> PlotLine:
    """A line breaks where two runs cannot be compared: another machine, tool or profile."""
    line, band = "", ""
    segment: list[_Point] = []
    for point in (*points, None):
        if segment and (point is None or point.protocol != segment[-1].protocol):
            line += _path([(each.x, height(each.figure.mean)) for each in segment])
            edge = [(each.x, height(each.figure.mean + each.figure.std)) for each in segment]
            edge += [(each.x, height(each.figure.mean - each.figure.std)) for each in reversed(segment)]
            band += _path(edge) + "z" if len(segment) > 1 else ""
            segment = []
        if point:
            segment.append(point)
    last = points[-1]
    dots, stale = (
        "".join(f"M{p.x} {height(p.figure.mean)}h0" for p in points if p.is_stale == wants) for wants in (False, True)
    )
    depth = last.figure.at.get("depth")
    label = "" if depth is None else figures.depth_text(depth)
    return PlotLine(label, order, line, band, dots, stale, right + 6, height(last.figure.mean) + 4)


def _path(points: Sequence[tuple[int, int]]) -> str:
    (x, y), *rest = points
    path = f"M{x} {y}"
    for next_x, next_y in rest:
        down = next_y - y
        path += f"l{next_x - x}{'' if down < 0 else ' '}{down}"
        x, y = next_x, next_y
    return path


def _spread_labels(lines: Sequence[PlotLine]) -> list[PlotLine]:
    """The lines with their labels apart from each other."""
    from dataclasses import replace

    placed, lowest = [], -math.inf
    for line in sorted(lines, key=lambda each: each.label_y):
        lowest = max(line.label_y, lowest + 13)
        placed.append(replace(line, label_y=int(lowest)))
    return sorted(placed, key=lambda each: each.order)


def _moves(columns: Sequence[PlotColumn]) -> Iterator[PlotMove]:
    by_image = {column.step.image: column for column in columns}
    height = _STRIP - 22
    for column in columns:
        origin = by_image.get(column.step.origin)
        if origin:
            top = height - min(34, 16 + abs(column.x - origin.x) // 12)
            path = f"M{origin.x} {height - 8}Q{(origin.x + column.x) // 2} {top} {column.x} {height - 8}"
            yield PlotMove(path, column.step.event == "rolled back")


def _scale(drawn: Sequence[PageFigure]) -> tuple[float, float, tuple[float, ...]]:
    """The ends of an axis that holds these figures with their noise, and two to five round ticks on it."""
    low = min(figure.mean - figure.std for figure in drawn)
    high = max(figure.mean + figure.std for figure in drawn)
    room = (high - low) or abs(high) * 0.1 or 1.0
    low, high = low - room * 0.12, high + room * 0.12
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step *= next(factor for factor in (5, 2, 1) if (high - low) / (step * factor) >= 2)
    first = math.ceil(low / step)
    return low, high, tuple(step * place for place in range(first, math.floor(high / step) + 1))


def _tick(value: float, unit: str) -> str:
    return f"{value / 1e9:.4g}" if unit == "bytes" else f"{value:.4g}"
