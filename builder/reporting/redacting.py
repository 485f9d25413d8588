"""The page without what tells of its owner's machines: paths, names of machines, and whatever was written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.reporting.page import (
        PageChange,
        PageConcern,
        PageImage,
        PageModel,
        PageRun,
        PageStep,
        PageTable,
        ReportPage,
    )

_ELSEWHERE = "elsewhere"


def redacted(page: ReportPage) -> ReportPage:
    """The same page with notes, reasons, paths and origins left out. Figures, versions, times, verdicts and the names
    of models, repositories and mods stay: a model that is a folder is told by the folder's own name."""
    return replace(
        page,
        concerns=tuple(_concern(each) for each in page.concerns),
        models=tuple(_model(each) for each in page.models),
        table=_table(page.table),
        images=tuple(_image(each) for each in page.images),
        redacted=True,
    )


def _concern(concern: PageConcern) -> PageConcern:
    word = {"missing": "something is missing", "bad": "marked bad"}.get(concern.concern, concern.concern)
    return replace(concern, subject=_name(concern.subject), image=_name(concern.image), text=word, command="")


def _model(model: PageModel) -> PageModel:
    history = tuple(_step(step) for step in model.history)
    return replace(
        model, model=_name(model.model), image=_name(model.image), recipe=None, note="", why="", history=history
    )


def _step(step: PageStep) -> PageStep:
    runs = tuple(_run(run) for run in step.runs)
    return replace(step, image=_name(step.image), origin=_name(step.origin), note="", runs=runs)


def _run(run: PageRun) -> PageRun:
    stale = ("something that it depends on changed",) if run.stale else ()
    foreign = _ELSEWHERE if run.foreign else ""
    return replace(run, stale=stale, foreign=foreign, accepted="", run=_digits(run.run))


def _table(table: PageTable) -> PageTable:
    return replace(
        table,
        images=tuple(map(_name, table.images)),
        models=tuple(map(_name, table.models)),
        cells=tuple(
            replace(cell, image=_name(cell.image), model=_name(cell.model), run=_digits(cell.run))
            for cell in table.cells
        ),
    )


def _image(image: PageImage) -> PageImage:
    return replace(
        image,
        image=_name(image.image),
        repository=_name(image.repository),
        adopted=_name(image.adopted) if image.adopted else None,
        note="",
        base=_name(image.base.partition(" ")[0]),
        models=tuple(map(_name, image.models)),
        change=_change(image.change) if image.change else None,
    )


def _change(change: PageChange) -> PageChange:
    others = tuple("another base image" if other.startswith("base image ") else other for other in change.others)
    unknown = "not everything is known" if change.unknown else ""
    return replace(change, since=_name(change.since), others=others, unknown=unknown)


def _digits(run: str) -> str:
    """The digits of a run's digest, with which its file's name ends."""
    return run.rpartition("/")[2].removesuffix(".json").rpartition("-")[2]


def _name(text: str) -> str:
    """A name without the host of a registry or the folders of a path before it."""
    if text.startswith(("/", "~", ".")):
        return text.rstrip("/").rpartition("/")[2]
    host, slash, rest = text.partition("/")
    is_host = slash and (":" in host or "." in host or host == "localhost")
    return rest if is_host else text
