"""The page as one HTML file: no script, nothing fetched, and every text escaped by the template engine.

It stays below a megabyte for 200 numbers and 20 models: histories share a number of rows, and long lists are cut with
what was left out; the JSON has all of it.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import humanize
from builder.reporting import plots

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.reporting.page import (
        PageCell,
        PageFigure,
        PageImage,
        PageModel,
        PageRun,
        PageStep,
        PageTable,
        ReportPage,
    )

_HERE = Path(__file__).parent
_LARGEST = 800_000  # bytes, without the style sheet and what is said once
_OF_A_ROW, _OF_A_CELL, _OF_AN_IMAGE = 900, 75, 620  # bytes, about
_MOST_ROWS = 1000  # of all histories together
_FEWEST_ROWS = 8
_LONGEST_TEXT = 400
_ALSO_MAIN = frozenset({"startup"})
_FULL_NAMES = 1500  # runs whose whole file names there is room for
_COMMITS = 1500  # listed titles in all
_MARKS = {"proven": "p", "changed": "c", "failed": "f", "stale": "s", "unclear": "u", "never tried": ""}
TITLE = "What serves what"


@dataclass(frozen=True)
class TableCell:
    """A cell of the table as it is shown: the word for the proof, the texts for other runs, and the runs' names."""

    word: str
    mark: str
    beside: tuple[str, ...]
    title: str


@dataclass(frozen=True)
class FigureTile:
    """A figure of the image that serves now, with the run that it is of. ``is_main`` of the few that stand out."""

    figure: PageFigure
    run: PageRun
    title: str
    is_main: bool

    @property
    def foreign(self) -> bool:
        """True of a run of others."""
        return bool(self.run.foreign)


@dataclass(frozen=True)
class HistoryRow:
    """A step of a history, and its figures as text."""

    step: PageStep
    figures: tuple[str, ...]


def render(page: ReportPage) -> str:
    """The whole page."""
    return _rendered(page, page.table, only_table=False)


def render_table(page: ReportPage) -> str:
    """The table alone, as a page."""
    return _rendered(page, page.table, only_table=True)


def _rendered(page: ReportPage, table: PageTable, *, only_table: bool) -> str:
    css = (_HERE / "page.css").read_text(encoding="utf-8")
    environment = _environment()
    drawn = _drawn(page)
    changes = {image.image: image for image in page.images}
    long_titles = len(table.cells) <= _FULL_NAMES
    moved = sum(len(image.change.sources) for image in page.images if image.change) or 1
    text = environment.get_template("page.html.j2").render(
        page=page,
        title=TITLE if not only_table else "What goes with what",
        only_table=only_table,
        css=_Trusted(css),
        policy=policy(css),
        anchors={image.image: f"i{place}" for place, image in enumerate(page.images)},
        model_anchors={model.model: f"m{place}" for place, model in enumerate(page.models)},
        headline={model.model: _headline(model) for model in page.models},
        current={model.model: tuple(_tiles(model)) for model in page.models},
        drawn=drawn,
        plots={model: plots.of(steps) for model, steps in drawn.items()},
        readouts={model: [tuple(_readout(step, steps, changes)) for step in steps] for model, steps in drawn.items()},
        columns={model: _titles(steps) for model, steps in drawn.items()},
        texts={model: _rows(steps) for model, steps in drawn.items()},
        cells=dict(_cells(table, long_names=long_titles)),
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


class _Trusted(str):
    """The style sheet, which is this program's own, as the template engine takes it."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


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
        "short": humanize.digest,
        "bytes": humanize.size,
        "moment": lambda text: text[:16].replace("T", " ") + " UTC",
        "mean": plots.mean_text,
        "spread": plots.spread_text,
        "label": plots.label_of,
    }
    return environment


def _drawn(page: ReportPage) -> dict[str, tuple[PageStep, ...]]:
    """The steps of each model that there is room for, the newest, and always the one that serves now: what short
    histories leave is for the long ones."""
    models = page.models
    cells = len({(cell.image, cell.model) for cell in page.table.cells})
    room = (_LARGEST - _OF_A_CELL * cells - _OF_AN_IMAGE * len(page.images)) // _OF_A_ROW
    room, left = min(room, _MOST_ROWS), len(models)
    lengths: dict[str, int] = {}
    for model in sorted(models, key=lambda model: len(model.history)):
        share = max(_FEWEST_ROWS, room // left)
        lengths[model.model] = min(len(model.history), share)
        room, left = max(0, room - lengths[model.model]), left - 1
    drawn = {}
    for model in models:
        newest = model.history[-lengths[model.model] :]
        if model.now and model.now not in newest:
            newest = (model.now, *newest[1:])
        drawn[model.model] = newest
    return drawn


def _headline(model: PageModel) -> str:
    """The speed of answers on the image that serves now, at the least depth."""
    if model.now is None:
        return ""
    steps = (model.now,)
    profile = plots.profile_of(steps)
    keys = plots.wanted(steps, "tg", profile)
    run = plots.measured(model.now, profile)
    figure = plots.figure_at(run, keys[0]) if keys else None
    return f"{plots.mean_text(figure)}{', stale' if run and run.stale else ''}" if figure else ""


def _tiles(model: PageModel) -> Iterator[FigureTile]:
    """Every figure of the image that serves now; those of the project's own drawn profile stand out."""
    steps = (model.now,) if model.now else ()
    main = plots.measured(steps[0], plots.profile_of(steps)) if steps else None
    keys = {key for name in plots.DRAWN for key in plots.wanted(steps, name, plots.profile_of(steps))}
    for run in model.now.runs if model.now else ():
        for figure in run.figures if run.kind != "prove" else ():
            is_main = run is main and (plots.key_of(figure) in keys or figure.name in _ALSO_MAIN)
            if figure.n:
                yield FigureTile(figure, run, plots.title_of(figure), is_main)


def _titles(steps: Sequence[PageStep]) -> tuple[str, ...]:
    return tuple(title for title, _ in _series(steps))


def _rows(steps: Sequence[PageStep]) -> tuple[HistoryRow, ...]:
    series = _series(steps)
    profile = plots.profile_of(steps)
    rows = []
    for step in reversed(steps):
        run = plots.measured(step, profile)
        figures = (plots.figure_at(run, key) for _, key in series)
        rows.append(HistoryRow(step, tuple(_figure(figure, run) for figure in figures)))
    return tuple(rows)


def _series(steps: Sequence[PageStep]) -> tuple[tuple[str, tuple[object, ...]], ...]:
    """The figures that a history shows: those that are drawn, and the speed of reading prompts."""
    profile = plots.profile_of(steps)
    series = []
    for name in ("tg", "pp", "acceptance", "memory_floor"):
        for key in plots.wanted(steps, name, profile):
            runs = (plots.measured(step, profile) for step in steps)
            figure = next(each for run in runs if (each := plots.figure_at(run, key)))
            unit = f", {figure.unit}" if figure.unit not in {"bytes", "ratio"} else ""
            series.append((f"{plots.label_of(figure)}{unit}", key))
    return tuple(series)


def _figure(figure: PageFigure | None, run: PageRun | None) -> str:
    if figure is None:
        return "-"
    spread = plots.spread_text(figure)
    mean = humanize.amount(figure.mean, figure.unit)
    return f"{mean}{f' {spread}' if spread else ''}{' stale' if run and run.stale else ''}"


def _readout(step: PageStep, steps: Sequence[PageStep], images: Mapping[str, PageImage]) -> Iterator[str]:
    """The lines that show when a number is pointed at."""
    repository = step.image.rpartition(":")[0] + ":"
    yield f"{step.image}, {step.built[:10]}" + (f", vLLM {step.vllm}" if step.vllm else "")
    origin = step.origin.removeprefix(repository)
    words = ["serves now" if step.is_now else "", f"{step.event} from {origin}" if origin else step.event]
    words += [step.status if step.status != "untested" else "", step.standing or "never proven"]
    yield ", ".join(word for word in words if word)
    profile = plots.profile_of((step,))
    run = plots.measured(step, profile)
    figures = [plots.figure_at(run, key) for key in plots.wanted((step,), "tg", profile)]
    if told := ", ".join(plots.mean_text(figure) for figure in figures if figure):
        yield f"decode {told}"
    image = images.get(step.image)
    change = image.change if image else None
    for source in change.sources[:1] if change else ():
        count = f", {humanize.counted(source.total, 'commit')}" if source.total is not None else ""
        since = change.since.removeprefix(repository) if change else ""
        yield plain(f"since {since}: {source.name} {source.before} → {source.after}{count}", 90)
        if len(steps) <= 40 and source.commits:
            yield plain(source.commits[0].title, 90)


def _cells(table: PageTable, *, long_names: bool) -> Iterator[tuple[tuple[str, str], TableCell]]:
    tried: dict[tuple[str, str], list[PageCell]] = {}
    for cell in table.cells:
        tried.setdefault((cell.image, cell.model), []).append(cell)
    for pair, cells in tried.items():
        proof = next((cell for cell in cells if cell.proof == "prove"), None)
        word = proof.word if proof else "never tried"
        beside = tuple(_beside(cell) for cell in cells if cell is not proof)
        title = ", ".join(_name(cell.run, long_names=long_names) for cell in cells)
        others = ("others: " + proof.others,) if proof and proof.others else ()
        yield pair, TableCell(word.removesuffix(" tried"), _MARKS[word], (*others, *beside), title)


def _beside(cell: PageCell) -> str:
    """A run beside the proof; of one that passed its name is enough."""
    name = cell.proof.partition(" ")[2]
    if cell.word == "proven":
        return f"+ {name}"
    return f"{name}: {f'others {cell.others}' if cell.word == 'never tried' and cell.others else cell.word}"


def _name(run: str, *, long_names: bool) -> str:
    name = run.rpartition("/")[2]
    return name if long_names else name.removesuffix(".json").rpartition("-")[2]
