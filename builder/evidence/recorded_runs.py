"""The runs of one image that are on record, as what is required is held against them: which of them count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.evidence import staleness

if TYPE_CHECKING:
    from builder.definitions.required_evidence import RequiredFigure
    from builder.evidence.record import Evidence, Figure, Kind, Subject
    from builder.lock.model import ImageName

# Of a run with figures: one that failed measured no image as it is.
_MEASURED = frozenset({"pass", "changed"})
_DEPTH, _CONCURRENCY = "depth", "concurrency"


@dataclass(frozen=True)
class RecordedRuns:
    """The runs of one image, in the order in which they were added, and the subject that one of a kind would have
    now. ``probes`` are the digests of the project's own probes as they are now."""

    image: ImageName
    runs: Sequence[Evidence]
    present: Callable[[Kind], Subject]
    probes: Mapping[str, str] = field(default_factory=dict)


def latest(of_image: RecordedRuns, kind: Kind, wanted: Callable[[Evidence], bool]) -> Evidence | str:
    """The latest run that counts, or why there is none."""
    present = of_image.present(kind)
    of_kind = [run for run in of_image.runs if run.kind == kind and wanted(run) and run.subject.model == present.model]
    own = [run for run in of_kind if not run.foreign]
    if not own:
        return f"only {of_kind[-1].foreign} has run it" if of_kind else "has not been run"
    set_now = of_image.probes.get(own[-1].name) if kind == "probe" else None
    if reasons := staleness.reasons(own[-1], present, set_now):
        return f"is stale: {'; '.join(reasons)}"
    return own[-1]


def with_figure(of_image: RecordedRuns, wanted: RequiredFigure) -> tuple[Evidence, ...]:
    """Every benchmark that counts and measured what ``wanted`` speaks of."""
    present = of_image.present("bench")
    return tuple(
        run
        for run in of_image.runs
        if run.kind == "bench"
        and not run.foreign
        and run.verdict in _MEASURED
        and run.subject.model == present.model
        and figures(run, wanted)
        and not staleness.reasons(run, present)
    )


def figures(run: Evidence, wanted: RequiredFigure) -> list[Figure]:
    """The figures of a run that ``wanted`` speaks of: of one request at a time, unless it says another number."""
    return [
        figure
        for figure in run.figures
        if figure.name == wanted.name
        and (wanted.depth is None or figure.at.get(_DEPTH, 0) == wanted.depth)
        and figure.at.get(_CONCURRENCY, 1) == (wanted.concurrency or 1)
    ]
