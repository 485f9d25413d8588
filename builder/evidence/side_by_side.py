"""The runs of two images side by side: those of the same kind, name and model, and the figures that both measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.evidence.overview import JudgedRun
    from builder.evidence.record import Evidence, Figure, Kind


@dataclass(frozen=True)
class FigurePair:
    """One figure of two runs, under the same conditions; None where a run has not measured it."""

    before: Figure | None
    after: Figure | None

    @property
    def figure(self) -> Figure:
        """Either of the two, for what they have in common."""
        figure = self.before or self.after
        if figure is None:
            raise ValueError("a pair of nothing")
        return figure

    @property
    def change(self) -> float | None:
        """The change of the mean as a fraction; None where there is nothing to compare."""
        if not (self.before and self.after and self.before.values and self.after.values and self.before.mean):
            return None
        return (self.after.mean - self.before.mean) / abs(self.before.mean)


@dataclass(frozen=True)
class RunPair:
    """The last runs of one kind, name and model on two images; None where an image has no such run. ``unlike`` tells
    what else differs between the two than the image, so that their figures cannot be compared; ``goldens`` names the
    conversations that both have and that give other tokens."""

    kind: Kind
    name: str
    model: str | None
    before: JudgedRun | None
    after: JudgedRun | None
    unlike: tuple[str, ...]
    figures: tuple[FigurePair, ...]
    goldens: tuple[str, ...]


def of(before: Sequence[JudgedRun], after: Sequence[JudgedRun]) -> tuple[RunPair, ...]:
    """The pairs of two images' last runs; the project's own go before those of others."""
    old, new = _by_name(before), _by_name(after)
    return tuple(_pair(old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new]))


def _by_name(runs: Sequence[JudgedRun]) -> dict[tuple[Kind, str, str | None], JudgedRun]:
    named: dict[tuple[Kind, str, str | None], JudgedRun] = {}
    for each in sorted(runs, key=lambda judged: bool(judged.run.foreign)):
        named.setdefault((each.run.kind, each.run.name, each.run.subject.model), each)
    return named


def _pair(before: JudgedRun | None, after: JudgedRun | None) -> RunPair:
    some = before or after
    if some is None:
        raise ValueError("a pair of nothing")
    run = some.run
    if before is None or after is None:
        return RunPair(run.kind, run.name, run.subject.model, before, after, (), (), ())
    old, new = before.run, after.run
    unlike = tuple(_unlike(old, new))
    goldens = tuple(sorted(c for c, ids in old.goldens.items() if new.goldens.get(c, ids) != ids)) if not unlike else ()
    return RunPair(run.kind, run.name, run.subject.model, before, after, unlike, _figures(old, new), goldens)


def _figures(old: Evidence, new: Evidence) -> tuple[FigurePair, ...]:
    def keyed(run: Evidence) -> dict[tuple[object, ...], Figure]:
        return {(figure.name, figure.unit, *sorted(figure.at.items())): figure for figure in run.figures}

    first, second = keyed(old), keyed(new)
    return tuple(FigurePair(first.get(key), second.get(key)) for key in dict.fromkeys([*first, *second]))


def _unlike(old: Evidence, new: Evidence) -> Iterator[str]:
    if old.set != new.set:
        yield {"prove": "other conversations", "bench": "another profile"}.get(old.kind, "another probe")
    if old.version != new.version:
        yield f"{old.version} and {new.version}"
    if old.subject.machine != new.subject.machine:
        yield "another machine"
    if dict(old.sampling) != dict(new.sampling):
        yield "other sampling"
    if dict(old.subject.overrides) != dict(new.subject.overrides):
        yield "other options in the command"
