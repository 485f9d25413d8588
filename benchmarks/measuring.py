"""Times actions in turn, and formats the times as Markdown tables."""

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
    """One comparison. ``ours`` and ``theirs`` are the seconds of each run; ``instead`` names the action of ``theirs``.
    ``reach`` is the target in seconds. If ``unit`` is RATIO, it is a multiple of the median of ``theirs``."""

    what: str
    ours: Sequence[float]
    instead: str = ""
    theirs: Sequence[float] = ()
    reach: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Table:
    """Related rows; ``how`` describes the measurement."""

    title: str
    how: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Grid:
    """The same actions at several sizes: the seconds of each run, by action and size."""

    title: str
    how: str
    sizes: Sequence[str]
    rows: Mapping[str, Sequence[Sequence[float]]]


def run(argv: Sequence[str], cwd: Path, environ: Mapping[str, str] | None = None) -> None:
    """Runs a command that must succeed; its output is shown only if it fails."""
    env = {**os.environ, **(environ or {})}
    # With this variable, Python would compile the program again in each run.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.run(
        argv, check=False, cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if process.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {process.returncode}\n{process.stdout}\n{process.stderr}")


def once(action: Action) -> float:
    """Runs an action once; returns the seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def in_turn(runs: int, *actions: Action) -> list[list[float]]:
    """Runs actions in turn, after a warm-up run of each; returns the seconds of each run, by action. Turns spread a
    busy minute of the machine over all actions."""
    for action in actions:
        action()
    rounds = [[once(action) for action in actions] for _ in range(runs)]
    return [list(taken) for taken in zip(*rounds, strict=True)]


def markdown(table: Table | Grid) -> str:
    """Formats a table with its title and the description of the measurement."""
    lines = _grid(table) if isinstance(table, Grid) else _table(table)
    return "\n".join([f"## {table.title}", "", table.how, "", *lines, ""])


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
    """The median, and the range if there were several runs."""
    if not taken:
        return ""
    unit, scale, digits = ("s", 1, 1) if statistics.median(taken) >= 2 else ("ms", 1000, 0)
    low, middle, high = (
        f"{scale * seconds:.{digits}f}" for seconds in (min(taken), statistics.median(taken), max(taken))
    )
    return f"{middle} {unit}" + (f" ({low}-{high})" if len(taken) > 1 else "")


def _reached(row: Row, ratio: float | None) -> str:
    if row.reach is None:
        return ""
    measured = ratio if row.unit == RATIO else statistics.median(row.ours)
    assert measured is not None
    target = f"{row.reach:g} times" if row.unit == RATIO else f"{row.reach * 1000:.0f} ms"
    return f"≤ {target}: {'reached' if measured <= row.reach else '**missed**'}"
