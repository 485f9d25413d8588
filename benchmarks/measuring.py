"""Timing things in turn, and showing what they took as Markdown."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Action = Callable[[], object]
RATIO = "times"


@dataclass(frozen=True)
class Row:
    """One thing measured. ``ours`` and ``theirs`` are the seconds of each run; ``instead`` is what ``theirs`` did.
    ``reach`` is the most that is wanted: seconds, or with RATIO as its ``unit`` times the median of ``theirs``."""

    what: str
    ours: Sequence[float]
    instead: str = ""
    theirs: Sequence[float] = ()
    reach: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Table:
    """Rows that belong together, with a sentence on how they were measured."""

    title: str
    how: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Grid:
    """The same things at several sizes: for each the seconds of each run at each size."""

    title: str
    how: str
    sizes: Sequence[str]
    rows: Mapping[str, Sequence[Sequence[float]]]


def run(argv: Sequence[str], cwd: Path, environ: Mapping[str, str] | None = None) -> None:
    """Runs a command that must succeed; what it prints is shown only where it does not."""
    env = {**os.environ, **(environ or {})}
    done = subprocess.run(argv, check=False, cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")


def once(action: Action) -> float:
    """The seconds of one run."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def in_turn(runs: int, *actions: Action) -> list[list[float]]:
    """The seconds of each run of each action, after one of each that does not count. They take turns, so that a busy
    minute of the machine is shared by all."""
    for action in actions:
        action()
    rounds = [[once(action) for action in actions] for _ in range(runs)]
    return [list(taken) for taken in zip(*rounds, strict=True)]


def markdown(found: Table | Grid) -> str:
    """The table with its title and how it was measured."""
    lines = _grid(found) if isinstance(found, Grid) else _table(found)
    return "\n".join([f"## {found.title}", "", found.how, "", *lines, ""])


def _table(table: Table) -> list[str]:
    lines = ["| what | takes | instead | that takes | ratio | to reach |", "|---|--:|---|--:|--:|---|"]
    for row in table.rows:
        ratio = statistics.median(row.ours) / statistics.median(row.theirs) if row.theirs else None
        cells = [row.what, _spread(row.ours), row.instead, _spread(row.theirs)]
        cells += [f"{ratio:.{2 if ratio >= 0.1 else 3}f}" if ratio else "", _reached(row, ratio)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _grid(grid: Grid) -> list[str]:
    lines = [f"| what | {' | '.join(grid.sizes)} |", f"|---|{'--:|' * len(grid.sizes)}"]
    for what, cells in grid.rows.items():
        lines.append(f"| {what} | {' | '.join(_spread(taken) for taken in cells)} |")
    return lines


def _spread(taken: Sequence[float]) -> str:
    """The median, and the range where there were several runs."""
    if not taken:
        return ""
    unit, scale, digits = ("s", 1, 1) if statistics.median(taken) >= 2 else ("ms", 1000, 0)
    low, middle, high = (f"{scale * one:.{digits}f}" for one in (min(taken), statistics.median(taken), max(taken)))
    return f"{middle} {unit}" + (f" ({low} to {high})" if len(taken) > 1 else "")


def _reached(row: Row, ratio: float | None) -> str:
    if row.reach is None:
        return ""
    got = ratio if row.unit == RATIO else statistics.median(row.ours)
    assert got is not None
    wanted = f"{row.reach:g} times" if row.unit == RATIO else f"{row.reach * 1000:.0f} ms"
    return f"≤ {wanted}: {'reached' if got <= row.reach else '**missed**'}"
