"""The figures that a page shows of a model's history: which of a run's many, and their words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import humanize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.reporting.page import PageFigure, PageRun, PageStep

DRAWN = ("tg", "acceptance", "memory_floor")
_MOST_DEPTHS = 4
_TITLES = {
    "tg": "decode",
    "pp": "prefill",
    "acceptance": "of the drafts accepted",
    "memory_floor": "of memory left",
    "startup": "to the first answer",
}


def profile_of(steps: Sequence[PageStep]) -> str:
    """The profile by which most numbers were measured."""
    counts: dict[str, int] = {}
    for run in (run for step in steps for run in step.runs if run.kind == "bench" and not run.foreign):
        counts[run.name] = counts.get(run.name, 0) + 1
    return min(counts, key=lambda name: (-counts[name], name), default="")


def measured(step: PageStep, profile: str) -> PageRun | None:
    """The project's own benchmark of a step by a profile."""
    runs = (run for run in step.runs if run.kind == "bench" and run.name == profile and not run.foreign)
    return next(runs, None)


def wanted(steps: Sequence[PageStep], name: str, profile: str) -> tuple[tuple[object, ...], ...]:
    """The conditions under which the figure ``name`` is drawn: one for each depth, with the fewest requests."""
    every: dict[tuple[object, ...], Mapping[str, int | str]] = {}
    for step in steps:
        run = measured(step, profile)
        for figure in run.figures if run else ():
            if figure.name == name and figure.n:
                every[key_of(figure)] = figure.at

    def order(key: tuple[object, ...]) -> tuple[float, str]:
        return _number(every[key].get("concurrency", 1)), repr(key)

    by_depth: dict[float, tuple[object, ...]] = {}
    for key in sorted(every, key=order):
        by_depth.setdefault(_number(every[key].get("depth", 0)), key)
    return tuple(by_depth[depth] for depth in sorted(by_depth))[:_MOST_DEPTHS]


def figure_at(run: PageRun | None, key: tuple[object, ...]) -> PageFigure | None:
    """The figure of a run under these conditions."""
    return next((figure for figure in run.figures if figure.n and key_of(figure) == key), None) if run else None


def key_of(figure: PageFigure) -> tuple[object, ...]:
    """The name and the conditions of a figure."""
    return (figure.name, *sorted(figure.at.items()))


def title_of(figure: PageFigure) -> str:
    """The name of a figure in plain words, with its depth."""
    depth = figure.at.get("depth")
    return _TITLES.get(figure.name, figure.name) + (
        f" {depth_text(depth).replace('at', 'at depth')}" if depth is not None else ""
    )


def label_of(figure: PageFigure) -> str:
    """The name of a figure with its conditions, as they tell it from others."""
    at = dict(figure.at)
    parts = [f"at depth {at.pop('depth')}"] if "depth" in at else []
    if at.get("concurrency") == 1:
        del at["concurrency"]
    return " ".join([figure.name, *parts, *(f"{name} {value}" for name, value in at.items())])


def depth_text(depth: object) -> str:
    """A depth in thousands of tokens (``at 32k``), a small one in tokens."""
    tokens = _number(depth)
    return f"at {tokens / 1024:.0f}k" if tokens >= 1024 else f"at {tokens:.0f}"


def mean_text(figure: PageFigure) -> str:
    """The mean of a figure with its unit."""
    unit = "" if figure.unit in {"bytes", "ratio"} else f" {figure.unit}"
    return f"{humanize.amount(figure.mean, figure.unit)}{unit}" if figure.n else "not measured"


def spread_text(figure: PageFigure) -> str:
    """The spread of a figure; of one value there is none."""
    return f"± {humanize.amount(figure.std, figure.unit)}" if figure.n > 1 else ""


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
