"""The report is one HTML file without scripts, and it fetches nothing.

The template engine escapes every text. The page stays below a megabyte for 200 numbers and 20 models: long histories
and lists are cut and say so; report.json has all of it.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.base import words
from builder.lab.report.collecting import Part, now_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_HERE = Path(__file__).parent
_ROWS = 400  # of all histories together
_FEWEST_ROWS, _MOST_ROWS = 8, 60  # of one history
_LISTED_COMMITS, _LISTED_PACKAGES = 5, 12
_LONGEST_TEXT = 400
_MARKS = {"proven": "p", "changed": "c", "failed": "f", "stale": "s", "unclear": "u", "never tried": ""}


def render_page(page: Part) -> str:
    from markupsafe import Markup  # of the template engine

    css = (_HERE / "page.css").read_text(encoding="utf-8")
    rows = max(_FEWEST_ROWS, min(_MOST_ROWS, _ROWS // max(1, len(page.models))))
    text = (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            css=Markup(css),  # noqa: S704  # the style sheet of this program
            policy=policy(css),
            anchors={image.image: f"i{place}" for place, image in enumerate(page.images)},
            model_anchors={model.model: f"m{place}" for place, model in enumerate(page.models)},
            views={model.model: view_of(model, rows) for model in page.models},
            changes={image.image: change_text(image.change) for image in page.images},
            cells=_cells(page.table),
            listed_commits=_LISTED_COMMITS,
            listed_packages=_LISTED_PACKAGES,
        )
    )
    return "\n".join(line for line in text.split("\n") if line.strip()) + "\n"


def policy(css: str) -> str:
    """The content security policy: no source at all but this one style sheet."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def plain(text: object, longest: int = _LONGEST_TEXT) -> str:
    """Text of others for the page: its control and direction characters as escapes, and not too long."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(_HERE),
        finalize=lambda value: plain(value, 1_000_000) if type(value) is str and not value.isprintable() else value,
    )
    environment.filters |= {
        "plain": plain,
        "short": words.short_digest,
        "bytes": words.size_text,
        "counted": words.counted,
        "moment": lambda text: text[:16].replace("T", " ") + " UTC",
        "mean": mean_text,
        "spread": spread_text,
        "label": label_of,
    }
    return environment


def _cells(table: Part) -> dict[tuple[str, str], Part]:
    """The cells by image and model: the word of the last proof, with the other runs beside it."""
    tried: dict[tuple[str, str], list[Part]] = {}
    for cell in table.cells:
        tried.setdefault((cell.image, cell.model), []).append(cell)
    shown = {}
    for pair, cells in tried.items():
        proof = next((cell for cell in cells if cell.proof == "prove"), None)
        word = proof.word if proof else "never tried"
        beside = [f"others: {proof.others}"] if proof and proof.others else []
        for cell in (each for each in cells if each is not proof):
            name = cell.proof.partition(" ")[2]
            result = f"others {cell.others}" if cell.word == "never tried" and cell.others else cell.word
            beside.append(f"+ {name}" if cell.word == "proven" else f"{name}: {result}")
        digits = ", ".join(cell.run.removesuffix(".json").rpartition("-")[2] for cell in cells)
        shown[pair] = Part(word=word.removesuffix(" tried"), mark=_MARKS[word], beside=beside, title=digits)
    return shown


def change_text(change: Part | None) -> str:
    """The first source that differs from the number before, in a line."""
    if change is None or not change.sources:
        return ""
    source = change.sources[0]
    count = f", {words.counted(source.total, 'commit')}" if source.total is not None else ""
    return f"since {change.since}: {source.name} {source.before or 'none'} → {source.after or 'none'}{count}"


# A model with its history: which of the many figures of its runs are shown, and their words.

Key: TypeAlias = "tuple[object, ...]"  # the name of a figure, and its conditions

_MOST_DEPTHS = 4
_TITLES = {
    "tg": "decode",
    "pp": "prefill",
    "acceptance": "of the drafts accepted",
    "memory_floor": "of memory left",
    "startup": "to the first answer",
}


def view_of(model: Part, most: int) -> Part:
    """A model as the page shows it: at most ``most`` of its newest ``steps``, always with the one that serves ``now``;
    their ``plot``; the figures in ``rows`` under ``columns``, the newest step first; all figures of now as ``tiles``,
    and as ``headline`` the speed of answers at the least depth."""
    now, steps = now_of(model), model.history[-most:]
    if now not in steps:
        steps = (now, *steps[1:])
    profile, runs = benchmarks(steps)
    _, (current,) = benchmarks((now,))
    speeds = [figure_at(current, key) for key in keys_of([current], "tg")]
    stale = ", stale" if current and current.stale else ""
    columns, keys = [], []
    for key in (key for name in ("tg", "pp", "acceptance", "memory_floor") for key in keys_of(runs, name)):
        figure = next(each for run in runs if (each := figure_at(run, key)))
        columns.append(label_of(figure) + (f", {figure.unit}" if figure.unit not in {"bytes", "ratio"} else ""))
        keys.append(key)
    return Part(
        now=now,
        steps=steps,
        headline=next((f"{mean_text(figure)}{stale}" for figure in speeds if figure), ""),
        tiles=list(_tiles(now, current)),
        columns=columns,
        rows=[(step, [_cell_text(run, key) for key in keys]) for step, run in zip(steps, runs, strict=True)][::-1],
        profile=profile,
        plot=plot_steps(steps, runs),
    )


def benchmarks(steps: Sequence[Part]) -> tuple[str, list[Part | None]]:
    """The profile that measured most of these steps, and the project's own benchmark of each step by it."""
    own = [[run for run in step.runs if run.kind == "bench" and not run.foreign] for step in steps]
    counts = Counter(run.name for runs in own for run in runs)
    profile = min(counts, key=lambda name: (-counts[name], name), default="")
    return profile, [next((run for run in runs if run.name == profile), None) for runs in own]


def keys_of(runs: Sequence[Part | None], name: str) -> tuple[Key, ...]:
    """The conditions under which the figure ``name`` is shown: one for each depth, with the fewest requests."""
    figures = [figure for run in runs if run for figure in run.figures if figure.name == name and figure.n]
    by_depth: dict[float, Key] = {}
    for figure in sorted(figures, key=lambda each: (_number(each.at.get("concurrency", 1)), repr(key_of(each)))):
        by_depth.setdefault(_number(figure.at.get("depth", 0)), key_of(figure))
    return tuple(by_depth[depth] for depth in sorted(by_depth))[:_MOST_DEPTHS]


def figure_at(run: Part | None, key: Key) -> Part | None:
    return next((figure for figure in run.figures if figure.n and key_of(figure) == key), None) if run else None


def key_of(figure: Part) -> Key:
    return (figure.name, *sorted(figure.at.items()))


def _tiles(now: Part, current: Part | None) -> Iterator[Part]:
    """Every figure of the image that serves now; the main ones are those that are drawn, and the time of a start."""
    drawn = {key for name in _PANELS for key in keys_of([current], name)}
    measured = ((run, figure) for run in now.runs if run.kind != "prove" for figure in run.figures)
    for run, figure in ((run, figure) for run, figure in measured if figure.n):
        depth = figure.at.get("depth")
        title = _TITLES.get(figure.name, figure.name) + ("" if depth is None else f" at depth {depth_text(depth)}")
        is_main = run is current and (key_of(figure) in drawn or figure.name == "startup")
        yield Part(figure=figure, run=run, title=title, is_main=is_main)


def _cell_text(run: Part | None, key: Key) -> str:
    if run is None or (figure := figure_at(run, key)) is None:
        return "-"
    parts = (words.amount_text(figure.mean, figure.unit), spread_text(figure), "stale" if run.stale else "")
    return " ".join(filter(None, parts))


def label_of(figure: Part) -> str:
    at = {name: value for name, value in figure.at.items() if (name, value) != ("concurrency", 1)}
    parts = [f"at depth {at.pop('depth')}"] if "depth" in at else []
    return " ".join([figure.name, *parts, *(f"{name} {value}" for name, value in at.items())])


def depth_text(depth: object) -> str:
    """A depth in thousands of tokens (``32k``), a small one in tokens."""
    tokens = _number(depth)
    return f"{tokens / 1024:.0f}k" if tokens >= 1024 else f"{tokens:.0f}"


def mean_text(figure: Part) -> str:
    unit = "" if figure.unit in {"bytes", "ratio"} else f" {figure.unit}"
    return f"{words.amount_text(figure.mean, figure.unit)}{unit}" if figure.n else "not measured"


def spread_text(figure: Part) -> str:
    return f"± {words.amount_text(figure.std, figure.unit)}" if figure.n > 1 else ""


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# The figures of a history as a drawing: lines with their band of noise over the numbers, in whole pixels. A dozen lines
# need no library.

_COLUMN, _LEFT, _RIGHT, _GAP, _LABELS = 36, 64, 84, 26, 24
# The title and the height of each figure's panel.
_PANELS = {
    "tg": ("decode at depth", 130),
    "acceptance": ("acceptance of drafts", 74),
    "memory_floor": ("memory left", 74),
}


def plot_steps(steps: Sequence[Part], runs: Sequence[Part | None]) -> Part:
    """The drawing of these steps in pixels: a column for each number, and a panel for each figure that was measured;
    without panels there is nothing to draw."""
    wide = max(_COLUMN, min(84, 900 // max(1, len(steps))))
    right = _LEFT + wide * len(steps)
    lefts = range(_LEFT, right, wide)
    columns = [
        Part(x=left + wide // 2, left=left, step=step, label=step.image.rpartition(":")[2], tip=_tip(step))
        for left, step in zip(lefts, steps, strict=True)
    ]
    panels = list(_panels([column.x for column in columns], runs, right))
    bottom = panels[-1].bottom if panels else 0
    return Part(
        width=right + _RIGHT,
        height=bottom + _LABELS,
        bottom=bottom,
        right=right,
        column=wide,
        columns=columns,
        panels=panels,
    )


def _tip(step: Part) -> str:
    facts = (
        f"{step.image}, {step.built[:10]}",
        f"vLLM {step.vllm}" if step.vllm else "",
        "serves now" if step.is_now else "",
        f"{step.event} from {step.origin}" if step.origin else step.event,
        step.status if step.status != "untested" else "",
        step.standing or "never proven",
    )
    return ", ".join(filter(None, facts))


def _panels(places: Sequence[int], runs: Sequence[Part | None], right: int) -> Iterator[Part]:
    """The panels, with the ``ticks`` of their axes as heights and labels."""
    top = _GAP
    for name, (title, height) in _PANELS.items():
        measured = [(x, run) for x, run in zip(places, runs, strict=True) if run]
        series = [
            [(x, figure, run) for x, run in measured if (figure := figure_at(run, key))] for key in keys_of(runs, name)
        ]
        if not series:
            continue
        low, high, ticks = _scale([figure for points in series for _, figure, _ in points])
        bottom = top + height

        def y(value: float, low: float = low, high: float = high, bottom: int = bottom, height: int = height) -> int:
            return round(bottom - (value - low) / (high - low) * height)

        unit = series[0][0][1].unit
        lines = [_line(points, order, y, right) for order, points in enumerate(series)]
        lowest = -math.inf
        for line in sorted(lines, key=lambda each: each.label_y):  # the labels apart from each other
            lowest = line.label_y = int(max(line.label_y, lowest + 13))
        yield Part(
            title=title + {"bytes": ", GB", "ratio": ""}.get(unit, f", {unit}"),
            top=top,
            bottom=bottom,
            ticks=[(y(tick), f"{tick / 1e9 if unit == 'bytes' else tick:.4g}") for tick in ticks],
            lines=lines,
        )
        top = bottom + _GAP


def _line(points: Sequence[tuple[int, Part, Part]], order: int, height: Callable[[float], int], right: int) -> Part:
    """A figure over the numbers, as paths: the ``line``, its ``band`` of one standard deviation, the ``dots`` of runs
    that count and the ``stale`` ones. It breaks where two runs cannot be compared: another machine, tool or profile."""
    line = band = ""
    for _, group in groupby(points, key=lambda point: point[2].protocol):
        segment = [(x, figure) for x, figure, _ in group]
        line += _path([(x, height(figure.mean)) for x, figure in segment])
        edge = [(x, height(figure.mean + figure.std)) for x, figure in segment]
        edge += [(x, height(figure.mean - figure.std)) for x, figure in reversed(segment)]
        band += _path(edge) + "z" if len(segment) > 1 else ""
    dots, stale = (
        "".join(f"M{x} {height(figure.mean)}h0" for x, figure, run in points if bool(run.stale) == wants)
        for wants in (False, True)
    )
    last = points[-1][1]
    depth = last.at.get("depth")
    return Part(
        label="" if depth is None else f"at {depth_text(depth)}",
        order=order,
        line=line,
        band=band,
        dots=dots,
        stale=stale,
        label_x=right + 6,
        label_y=height(last.mean) + 4,
    )


def _path(points: Sequence[tuple[int, int]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _scale(drawn: Sequence[Part]) -> tuple[float, float, tuple[float, ...]]:
    """The ends of an axis that holds these figures with their noise, and two to five round ticks on it."""
    low = min(figure.mean - figure.std for figure in drawn)
    high = max(figure.mean + figure.std for figure in drawn)
    room = (high - low) or abs(high) * 0.1 or 1.0
    low, high = low - room * 0.12, high + room * 0.12
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step *= next(factor for factor in (5, 2, 1) if (high - low) / (step * factor) >= 2)
    first = math.ceil(low / step)
    return low, high, tuple(step * place for place in range(first, math.floor(high / step) + 1))
