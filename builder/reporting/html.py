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
from builder.reporting import figures, histories, plots

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.reporting.page import PageCell, PageImage, PageStep, PageTable, ReportPage

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
TITLE = "What serves what"


@dataclass(frozen=True)
class TableCell:
    """A cell of the table as it is shown: the word for the proof, the texts for other runs, and the runs' names."""

    word: str
    mark: str
    beside: tuple[str, ...]
    title: str


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
        headline={model.model: histories.headline(model) for model in page.models},
        current={model.model: tuple(histories.tiles(model)) for model in page.models},
        drawn=drawn,
        plots={model: plots.of(steps) for model, steps in drawn.items()},
        readouts={model: [_readout(step, steps, changes) for step in steps] for model, steps in drawn.items()},
        columns={model: histories.titles(steps) for model, steps in drawn.items()},
        texts={model: histories.rows(steps) for model, steps in drawn.items()},
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
        "counted": humanize.counted,
        "moment": lambda text: text[:16].replace("T", " ") + " UTC",
        "mean": figures.mean_text,
        "spread": figures.spread_text,
        "label": figures.label_of,
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


def _readout(step: PageStep, steps: Sequence[PageStep], images: Mapping[str, PageImage]) -> tuple[str, ...]:
    return tuple(plain(line, _LONGEST_LINE) for line in histories.readout(step, steps, images))


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
    return run if long_names else run.removesuffix(".json").rpartition("-")[2]
