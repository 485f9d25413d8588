"""The report is one HTML file without scripts, and it fetches nothing.

The template engine escapes every text. The page stays below a megabyte for 200 numbers and 20 models: histories share a
number of rows, and long lists are cut and say so; the JSON has all of it.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.base import words
from builder.lab.report.collecting import Part, now_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_HERE = Path(__file__).parent
_LARGEST = 800_000  # bytes, without the style sheet and what is said once
_OF_A_ROW, _OF_A_CELL, _OF_AN_IMAGE = 900, 75, 620  # bytes, about
_MOST_ROWS = 1000  # of all histories together
_FEWEST_ROWS = 8
_LONGEST_TEXT = 400
_LONGEST_LINE = 90  # of what shows when a number is pointed at
_FULL_NAMES = 1500  # runs whose whole file names there is room for
_COMMITS = 1500  # listed titles in all
_MARKS = {"proven": "p", "changed": "c", "failed": "f", "stale": "s", "unclear": "u", "never tried": ""}


def render_page(page: Part, *, only_table: bool = False) -> str:
    """The whole page, or the table of what goes with what alone."""
    from markupsafe import Markup  # of the template engine

    css = (_HERE / "page.css").read_text(encoding="utf-8")
    drawn = _drawn(page)
    images = {image.image: image for image in page.images}
    long_titles = len(page.table.cells) <= _FULL_NAMES
    moved = sum(len(image.change.sources) for image in page.images if image.change) or 1
    template = _environment().get_template("page.html.j2")
    text = template.render(
        page=page,
        title="What goes with what" if only_table else "What serves what",
        only_table=only_table,
        css=Markup(css),  # noqa: S704  # the style sheet of this program
        policy=policy(css),
        anchors={image.image: f"i{place}" for place, image in enumerate(page.images)},
        model_anchors={model.model: f"m{place}" for place, model in enumerate(page.models)},
        now={model.model: now_of(model) for model in page.models},
        headline={model.model: headline(model) for model in page.models},
        current={model.model: tuple(tiles(model)) for model in page.models},
        drawn=drawn,
        plots={model: plot_steps(steps) for model, steps in drawn.items()},
        readouts={
            model: [[plain(line, _LONGEST_LINE) for line in readout(step, steps, images)] for step in steps]
            for model, steps in drawn.items()
        },
        columns={model: [title for title, _ in MeasuredSteps(steps).series()] for model, steps in drawn.items()},
        texts={model: rows(steps) for model, steps in drawn.items()},
        cells=_cells(page.table, long_names=long_titles),
        long_titles=long_titles,
        listed_commits=max(2, min(20, _COMMITS // moved)),
        listed_packages=12 if len(page.images) > 50 else 60,
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


def _drawn(page: Part) -> dict[str, tuple[Part, ...]]:
    """The steps of each model that there is room for, the newest, and always the one that serves now: what short
    histories leave is for the long ones."""
    cells = len({(cell.image, cell.model) for cell in page.table.cells})
    room = (_LARGEST - _OF_A_CELL * cells - _OF_AN_IMAGE * len(page.images)) // _OF_A_ROW
    room = min(room, _MOST_ROWS)
    drawn = {}
    by_length = sorted(page.models, key=lambda model: len(model.history))
    for left, model in zip(range(len(by_length), 0, -1), by_length, strict=True):
        newest = model.history[-max(_FEWEST_ROWS, room // left) :]
        now = now_of(model)
        drawn[model.model] = newest if now in newest else (now, *newest[1:])
        room = max(0, room - len(newest))
    return drawn


def _cells(table: Part, *, long_names: bool) -> dict[tuple[str, str], Part]:
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
        names = (cell.run if long_names else cell.run.removesuffix(".json").rpartition("-")[2] for cell in cells)
        shown[pair] = Part(word=word.removesuffix(" tried"), mark=_MARKS[word], beside=beside, title=", ".join(names))
    return shown


# The figures of a model's history: which of a run's many are shown, and their words.

Key: TypeAlias = "tuple[object, ...]"  # the name of a figure, and its conditions

DRAWN = ("tg", "acceptance", "memory_floor")
_MOST_DEPTHS = 4
_TITLES = {
    "tg": "decode",
    "pp": "prefill",
    "acceptance": "of the drafts accepted",
    "memory_floor": "of memory left",
    "startup": "to the first answer",
}


class MeasuredSteps:
    """Steps of a history, and the project's own benchmark of each by the ``profile`` that measured most."""

    def __init__(self, steps: Sequence[Part]) -> None:
        self.steps = steps
        own = [[run for run in step.runs if run.kind == "bench" and not run.foreign] for step in steps]
        counts = Counter(run.name for runs in own for run in runs)
        self.profile = min(counts, key=lambda name: (-counts[name], name), default="")
        self.runs = [next((run for run in runs if run.name == self.profile), None) for runs in own]

    def keys(self, name: str) -> tuple[Key, ...]:
        """The conditions under which the figure ``name`` is drawn: one for each depth, with the fewest requests."""
        figures = [figure for run in self.runs if run for figure in run.figures if figure.name == name and figure.n]
        by_depth: dict[float, Key] = {}
        for figure in sorted(figures, key=lambda each: (_number(each.at.get("concurrency", 1)), repr(key_of(each)))):
            by_depth.setdefault(_number(figure.at.get("depth", 0)), key_of(figure))
        return tuple(by_depth[depth] for depth in sorted(by_depth))[:_MOST_DEPTHS]

    def series(self) -> Iterator[tuple[str, Key]]:
        """The figures that a history shows, with their titles: those that are drawn, and the speed of prefill."""
        for key in (key for name in ("tg", "pp", "acceptance", "memory_floor") for key in self.keys(name)):
            figure = next(each for run in self.runs if (each := figure_at(run, key)))
            unit = f", {figure.unit}" if figure.unit not in {"bytes", "ratio"} else ""
            yield f"{label_of(figure)}{unit}", key


def figure_at(run: Part | None, key: Key) -> Part | None:
    return next((figure for figure in run.figures if figure.n and key_of(figure) == key), None) if run else None


def key_of(figure: Part) -> Key:
    return (figure.name, *sorted(figure.at.items()))


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


# The history of a model in words: the figures of what serves now, the rows below the drawing, and what is told of a
# number that is pointed at.


def headline(model: Part) -> str:
    """The speed of answers on the image that serves now, at the least depth."""
    now = MeasuredSteps((now_of(model),))
    (run,) = now.runs
    figures = (figure for key in now.keys("tg") if (figure := figure_at(run, key)))
    return next((f"{mean_text(figure)}{', stale' if run and run.stale else ''}" for figure in figures), "")


def tiles(model: Part) -> Iterator[Part]:
    """Every figure of the image that serves now; those of the project's own drawn profile stand out."""
    now = MeasuredSteps((now_of(model),))
    keys = {key for name in DRAWN for key in now.keys(name)}
    runs = [run for step in now.steps for run in step.runs if run.kind != "prove"]
    for run, figure in [(each, figure) for each in runs for figure in each.figures if figure.n]:
        depth = figure.at.get("depth")
        title = _TITLES.get(figure.name, figure.name) + ("" if depth is None else f" at depth {depth_text(depth)}")
        is_main = run in now.runs and (key_of(figure) in keys or figure.name == "startup")
        yield Part(figure=figure, run=run, title=title, is_main=is_main)


def rows(steps: Sequence[Part]) -> list[tuple[Part, list[str]]]:
    measured = MeasuredSteps(steps)
    keys = [key for _, key in measured.series()]
    shown = []
    for step, run in zip(steps, measured.runs, strict=True):
        stale = "stale" if run and run.stale else ""
        figures = [figure_at(run, key) for key in keys]
        parts = [(words.amount_text(f.mean, f.unit), spread_text(f), stale) if f else ("-",) for f in figures]
        shown.append((step, [" ".join(filter(None, each)) for each in parts]))
    return shown[::-1]


def readout(step: Part, steps: Sequence[Part], images: Mapping[str, Part]) -> Iterator[str]:
    """The lines that show when a number is pointed at."""
    repository = step.image.rpartition(":")[0] + ":"
    yield f"{step.image}, {step.built[:10]}" + (f", vLLM {step.vllm}" if step.vllm else "")
    origin = step.origin.removeprefix(repository)
    facts = ["serves now" if step.is_now else "", f"{step.event} from {origin}" if origin else step.event]
    facts += [step.status if step.status != "untested" else "", step.standing or "never proven"]
    yield ", ".join(filter(None, facts))
    measured = MeasuredSteps((step,))
    speeds = [figure_at(measured.runs[0], key) for key in measured.keys("tg")]
    if told := ", ".join(mean_text(figure) for figure in speeds if figure):
        yield f"decode {told}"
    change = images[step.image].change if step.image in images else None
    for source in change.sources[:1] if change else ():
        count = f", {words.counted(source.total, 'commit')}" if source.total is not None else ""
        since = change.since.removeprefix(repository) if change else ""
        yield f"since {since}: {source.name} {source.before} → {source.after}{count}"
        if len(steps) <= 40 and source.commits:
            yield source.commits[0].title


# The history of a model as a drawing: lines with their band of noise over the numbers, placed in whole pixels. A dozen
# lines and their labels need no library, and the page no script.

_COLUMN, _LEFT, _RIGHT = 36, 64, 84
_STRIP, _GAP, _READOUT, _NARROWEST = 64, 26, 92, 560
_PHONE = 330  # what the narrowest phones show of it
_LETTER = 6  # the width of one, about
# The title and the height of each figure's panel.
_PANELS = {
    "tg": ("decode at depth", 130),
    "acceptance": ("acceptance of drafts", 74),
    "memory_floor": ("memory left", 74),
}


def plot_steps(steps: Sequence[Part]) -> Part:
    """The drawing of these steps, in pixels, as page.html.j2 puts it together: ``columns`` (a number each), ``moves``
    (arcs between numbers) and ``panels`` (a quantity each). The text of a number that is pointed at begins at
    ``readout``; ``is_long`` where a phone shows the newest number only when the drawing is scrolled to its end."""
    wide = max(_COLUMN, min(84, 900 // max(1, len(steps))))
    right = _LEFT + wide * len(steps)
    repositories = _repositories(steps, wide // _LETTER)
    columns = []
    for place, (step, repository) in enumerate(zip(steps, repositories, strict=True)):
        left, label = _LEFT + wide * place, step.image.rpartition(":")[2]
        side = "start" if place < len(steps) / 2 else "end"
        columns.append(Part(x=left + wide // 2, left=left, step=step, label=label, side=side, repository=repository))
    measured = MeasuredSteps(steps)
    panels = list(_panels([column.x for column in columns], measured, right))
    bottom = panels[-1].bottom if panels else _STRIP
    return Part(
        width=max(_NARROWEST, right + _RIGHT),
        column=wide,
        height=bottom + _GAP + _READOUT,
        right=right,
        strip=_STRIP - 22,
        readout=bottom + _GAP + 8,
        columns=columns,
        moves=list(_moves(columns)),
        panels=panels,
        profile=measured.profile,
        is_long=right > _PHONE,
    )


def _repositories(steps: Sequence[Part], longest: int) -> list[str]:
    """The repository of each step, by the part that differs, where they are of several; else empty texts."""
    names = [step.image.rpartition(":")[0] for step in steps]
    if len(set(names)) < 2:
        return [""] * len(names)
    parts = [re.split("(?<=[-/])", name) for name in names]
    # The last part of a name is never left out.
    beginnings = zip(*(part[:-1] for part in parts), strict=False)
    alike = len(list(takewhile(lambda each: len(set(each)) == 1, beginnings)))
    texts = ["".join(part[alike:]) for part in parts]
    return [text if len(text) <= longest else f"{text[: longest - 1]}…" for text in texts]


def _panels(places: Sequence[int], measured: MeasuredSteps, right: int) -> Iterator[Part]:
    """A panel for each quantity that was measured, with the ``ticks`` of its axis: their heights and labels."""
    top = _STRIP + _GAP
    for name in DRAWN:
        title, height = _PANELS[name]
        runs = [(x, run) for x, run in zip(places, measured.runs, strict=True) if run]
        series = [
            [(x, figure, run) for x, run in runs if (figure := figure_at(run, key))] for key in measured.keys(name)
        ]
        if not series:
            continue
        low, high, ticks = _scale([figure for points in series for _, figure, _ in points])
        bottom = top + height

        def y(value: float, low: float = low, high: float = high, bottom: int = bottom, height: int = height) -> int:
            return round(bottom - (value - low) / (high - low) * height)

        unit = series[0][0][1].unit
        lines = [_line(points, order, y, right) for order, points in enumerate(series)]
        shown = {"bytes": ", GB", "ratio": ""}.get(unit, f", {unit}")
        lowest = -math.inf
        for line in sorted(lines, key=lambda each: each.label_y):  # the labels apart from each other
            lowest = line.label_y = int(max(line.label_y, lowest + 13))
        yield Part(
            title=f"{title}{shown}",
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
    (x, y), *rest = points
    path = f"M{x} {y}"
    for next_x, next_y in rest:
        down = next_y - y
        path += f"l{next_x - x}{'' if down < 0 else ' '}{down}"
        x, y = next_x, next_y
    return path


def _moves(columns: Sequence[Part]) -> Iterator[Part]:
    by_image = {column.step.image: column for column in columns}
    height = _STRIP - 22
    for column in columns:
        if origin := by_image.get(column.step.origin):
            top = height - min(34, 16 + abs(column.x - origin.x) // 12)
            path = f"M{origin.x} {height - 8}Q{(origin.x + column.x) // 2} {top} {column.x} {height - 8}"
            yield Part(path=path, is_back=column.step.event == "rolled back")


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
