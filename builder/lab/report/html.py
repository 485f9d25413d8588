"""The report is one HTML file without scripts. It fetches nothing.

The template engine escapes every text. The page stays below a megabyte for 200 numbers and 20 models: long histories
and lists are shortened, with a note. report.json contains all data.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from builder.base import words
from builder.lab.report.collecting import Part, now_of

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
            cells=_cells(page.table),
            listed_commits=_LISTED_COMMITS,
            listed_packages=_LISTED_PACKAGES,
        )
    )
    return "\n".join(line for line in text.split("\n") if line.strip()) + "\n"


def policy(css: str) -> str:
    """The content security policy: it allows only this style sheet."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def plain(text: object, longest: int = _LONGEST_TEXT) -> str:
    """Untrusted text for the page: control and direction characters are escaped, and long text is cut."""
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
    """The cells by image and model: the word of the last proof, and the other runs."""
    tried: dict[tuple[str, str], list[Part]] = {}
    for cell in table.cells:
        tried.setdefault((cell.image, cell.model), []).append(cell)
    shown = {}
    for pair, cells in tried.items():
        proof = next((cell for cell in cells if cell.proof == "prove"), None)
        word = proof.word if proof else "never tried"
        beside = []
        for cell in (each for each in cells if each is not proof):
            name = cell.proof.partition(" ")[2] or cell.proof  # a comparison has no other name
            beside.append(f"+ {name}" if cell.word == "proven" else f"{name}: {cell.word}")
        digits = ", ".join(cell.run.removesuffix(".json").rpartition("-")[2] for cell in cells)
        shown[pair] = Part(word=word.removesuffix(" tried"), mark=_MARKS[word], beside=beside, title=digits)
    return shown


# A model with its history: the figures that are shown, and their texts.

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
    """The view of a model on the page: at most ``most`` of its newest steps, always including ``now``. ``rows`` are the
    figures of the steps under ``columns``, the newest first. ``tiles`` are all figures of the present step;
    ``headline`` is the decode speed at the smallest depth. ``profile`` is the bench profile of the figures."""
    now, steps = now_of(model), model.history[-most:]
    if now not in steps:
        steps = (now, *steps[1:])
    profile, runs = benchmarks(steps)
    _, (current,) = benchmarks((now,))
    speeds = [figure_at(current, key) for key in keys_of([current], "tg")]
    stale = ", stale" if current and current.stale else ""
    keys = [key for name in _TITLES for key in keys_of(runs, name) if name != "startup"]
    series = [[figure_at(run, key) for run in runs] for key in keys]
    columns = [_column(next(figure for figure in figures if figure)) for figures in series]
    tops = [max(figure.mean for figure in figures if figure) for figures in series]
    newest = next((run.protocol for run in reversed(runs) if run), "")
    rows = [
        (step, [_cell(figures[place], run, newest, top) for figures, top in zip(series, tops, strict=True)])
        for place, (step, run) in enumerate(zip(steps, runs, strict=True))
    ]
    return Part(
        now=now,
        headline=next((f"{mean_text(figure)}{stale}" for figure in speeds if figure), ""),
        tiles=list(_tiles(now, current)),
        columns=columns,
        rows=rows[::-1],
        profile=profile,
    )


def _column(figure: Part) -> str:
    return label_of(figure) + (f", {figure.unit}" if figure.unit not in {"bytes", "ratio"} else "")


def _cell(figure: Part | None, run: Part | None, newest: str, most: float) -> Part:
    """A figure of a run as text, and its mean as a bar relative to the largest mean in its column. A run that cannot be
    compared with the ``newest``, because of another machine or tool, has no bar."""
    if figure is None or run is None:
        return Part(text="-", mean=None, most=most)
    parts = [words.amount_text(figure.mean, figure.unit), spread_text(figure), "stale" if run.stale else ""]
    is_alike = run.protocol == newest
    parts.append("" if is_alike else "other conditions")
    return Part(text=" ".join(filter(None, parts)), mean=figure.mean if is_alike else None, most=most)


def benchmarks(steps: Sequence[Part]) -> tuple[str, list[Part | None]]:
    """The profile that measured most of these steps, and the benchmark with it for each step."""
    own = [[run for run in step.runs if run.kind == "bench"] for step in steps]
    counts = Counter(run.name for runs in own for run in runs)
    profile = min(counts, key=lambda name: (-counts[name], name), default="")
    return profile, [next((run for run in runs if run.name == profile), None) for runs in own]


def keys_of(runs: Sequence[Part | None], name: str) -> tuple[Key, ...]:
    """The conditions under which the figure ``name`` is shown: one per depth, with the smallest number of requests."""
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
    """All figures of the image that serves now. The main figures are the columns of the history, without prefill, and
    the start-up time."""
    main = {key for name in _TITLES for key in keys_of([current], name) if name != "pp"}
    measured = ((run, figure) for run in now.runs if run.kind != "prove" for figure in run.figures)
    for run, figure in ((run, figure) for run, figure in measured if figure.n):
        depth = figure.at.get("depth")
        title = _TITLES.get(figure.name, figure.name) + ("" if depth is None else f" at depth {depth_text(depth)}")
        is_main = run is current and key_of(figure) in main
        yield Part(figure=figure, run=run, title=title, is_main=is_main)


def label_of(figure: Part) -> str:
    at = {name: value for name, value in figure.at.items() if (name, value) != ("concurrency", 1)}
    parts = [f"at depth {at.pop('depth')}"] if "depth" in at else []
    return " ".join([figure.name, *parts, *(f"{name} {value}" for name, value in at.items())])


def depth_text(depth: object) -> str:
    """A depth in units of 1024 tokens (``32k``), or in tokens if it is small."""
    tokens = _number(depth)
    return f"{tokens / 1024:.0f}k" if tokens >= 1024 else f"{tokens:.0f}"


def mean_text(figure: Part) -> str:
    unit = "" if figure.unit in {"bytes", "ratio"} else f" {figure.unit}"
    return f"{words.amount_text(figure.mean, figure.unit)}{unit}" if figure.n else "not measured"


def spread_text(figure: Part) -> str:
    return f"± {words.amount_text(figure.std, figure.unit)}" if figure.n > 1 else ""


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
