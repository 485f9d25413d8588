"""The history of a model in words: the figures of what serves now, the rows below the drawing, and what is told of a
number that is pointed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import humanize
from builder.reporting import figures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.reporting.page import PageFigure, PageImage, PageModel, PageRun, PageStep

_ALSO_MAIN = frozenset({"startup"})


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


def headline(model: PageModel) -> str:
    """The speed of answers on the image that serves now, at the least depth."""
    if model.now is None:
        return ""
    steps = (model.now,)
    profile = figures.profile_of(steps)
    keys = figures.wanted(steps, "tg", profile)
    run = figures.measured(model.now, profile)
    figure = figures.figure_at(run, keys[0]) if keys else None
    return f"{figures.mean_text(figure)}{', stale' if run and run.stale else ''}" if figure else ""


def tiles(model: PageModel) -> Iterator[FigureTile]:
    """Every figure of the image that serves now; those of the project's own drawn profile stand out."""
    steps = (model.now,) if model.now else ()
    main = figures.measured(steps[0], figures.profile_of(steps)) if steps else None
    keys = {key for name in figures.DRAWN for key in figures.wanted(steps, name, figures.profile_of(steps))}
    for run in model.now.runs if model.now else ():
        for figure in run.figures if run.kind != "prove" else ():
            is_main = run is main and (figures.key_of(figure) in keys or figure.name in _ALSO_MAIN)
            if figure.n:
                yield FigureTile(figure, run, figures.title_of(figure), is_main)


def titles(steps: Sequence[PageStep]) -> tuple[str, ...]:
    """The columns of the rows' figures."""
    return tuple(title for title, _ in _series(steps))


def rows(steps: Sequence[PageStep]) -> tuple[HistoryRow, ...]:
    """The steps as rows, the newest first."""
    series = _series(steps)
    profile = figures.profile_of(steps)
    texts = []
    for step in reversed(steps):
        run = figures.measured(step, profile)
        shown = (figures.figure_at(run, key) for _, key in series)
        texts.append(HistoryRow(step, tuple(_figure(figure, run) for figure in shown)))
    return tuple(texts)


def _series(steps: Sequence[PageStep]) -> tuple[tuple[str, tuple[object, ...]], ...]:
    """The figures that a history shows: those that are drawn, and the speed of reading prompts."""
    profile = figures.profile_of(steps)
    series = []
    for name in ("tg", "pp", "acceptance", "memory_floor"):
        for key in figures.wanted(steps, name, profile):
            runs = (figures.measured(step, profile) for step in steps)
            figure = next(each for run in runs if (each := figures.figure_at(run, key)))
            unit = f", {figure.unit}" if figure.unit not in {"bytes", "ratio"} else ""
            series.append((f"{figures.label_of(figure)}{unit}", key))
    return tuple(series)


def _figure(figure: PageFigure | None, run: PageRun | None) -> str:
    if figure is None:
        return "-"
    spread = figures.spread_text(figure)
    mean = humanize.amount(figure.mean, figure.unit)
    return f"{mean}{f' {spread}' if spread else ''}{' stale' if run and run.stale else ''}"


def readout(step: PageStep, steps: Sequence[PageStep], images: Mapping[str, PageImage]) -> Iterator[str]:
    """The lines that show when a number is pointed at."""
    repository = step.image.rpartition(":")[0] + ":"
    yield f"{step.image}, {step.built[:10]}" + (f", vLLM {step.vllm}" if step.vllm else "")
    origin = step.origin.removeprefix(repository)
    words = ["serves now" if step.is_now else "", f"{step.event} from {origin}" if origin else step.event]
    words += [step.status if step.status != "untested" else "", step.standing or "never proven"]
    yield ", ".join(word for word in words if word)
    profile = figures.profile_of((step,))
    run = figures.measured(step, profile)
    speeds = [figures.figure_at(run, key) for key in figures.wanted((step,), "tg", profile)]
    if told := ", ".join(figures.mean_text(figure) for figure in speeds if figure):
        yield f"decode {told}"
    image = images.get(step.image)
    change = image.change if image else None
    for source in change.sources[:1] if change else ():
        count = f", {humanize.counted(source.total, 'commit')}" if source.total is not None else ""
        since = change.since.removeprefix(repository) if change else ""
        yield f"since {since}: {source.name} {source.before} → {source.after}{count}"
        if len(steps) <= 40 and source.commits:
            yield source.commits[0].title
