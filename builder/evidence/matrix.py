"""The recorded runs of several images together: which image goes with which model, and two images side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

from builder.evidence.run_record import SAME, unlike

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from builder.evidence.run_record import Figure, Kind
    from builder.evidence.standing import ImageEvidence, JudgedRun
    from builder.lock.model import ImageName, Lock

CellWord = Literal["proven", "changed", "failed", "stale", "unclear", "never tried"]
_BY_VERDICT: dict[str, CellWord] = {"pass": "proven", "changed": "changed", "fail": "failed", "unclear": "unclear"}
_CELL_WORDS: tuple[CellWord, ...] = (*_BY_VERDICT.values(), "stale", "never tried")
_KINDS: tuple[Kind, ...] = ("prove", "bench", "probe", "same")
_ONLY_NAMES = {("prove", "behaviour"), ("same", SAME)}  # of kinds whose runs all have one name


@dataclass(frozen=True)
class MatrixCell:
    """One proof of a model on an image: the file of its ``run``, the ``seconds`` that the run took, and ``why`` it has
    this word."""

    image: ImageName
    model: str
    proof: str
    word: CellWord = "never tried"
    why: str = ""
    run: str | None = None
    started: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Matrix:
    """The table: ``images`` with the newest of a repository first, ``proofs`` such as ``prove`` or ``bench quick``, and
    a cell for each of their combinations."""

    images: tuple[ImageName, ...]
    models: tuple[str, ...]
    proofs: tuple[str, ...]
    cells: tuple[MatrixCell, ...]

    def counts(self) -> dict[CellWord, int]:
        counts = Counter(cell.word for cell in self.cells)
        return {word: counts[word] for word in _CELL_WORDS}


def models_of(lock: Lock, evidence: Iterable[ImageEvidence]) -> tuple[str, ...]:
    """The models that images are paired with or were run with, sorted."""
    run_with = {each.run.subject.model for image in evidence for each in image.last}
    return tuple(sorted({*lock.models, *filter(None, run_with)}))


def build_matrix(
    images: Collection[ImageName], models: Collection[str], evidence: Mapping[ImageName, ImageEvidence]
) -> Matrix:
    proofs: dict[str, tuple[int, str]] = {"prove": (0, "")}
    cells: dict[tuple[ImageName, str, str], MatrixCell] = {}
    for name in images:
        for judged in evidence[name].last if name in evidence else ():
            run, model = judged.run, judged.run.subject.model
            if not model or model not in models:
                continue
            proof = run.kind if (run.kind, run.name) in _ONLY_NAMES else f"{run.kind} {run.name}"
            proofs[proof] = (_KINDS.index(run.kind), run.name)
            key, file = (name, model, proof), f"evidence/{name.repository}/{name.number}/{run.file}"
            why = "; ".join(judged.stale) or run.accepted
            cells[key] = MatrixCell(*key, word_of(judged), why, file, run.started, run.seconds)
    ordered = tuple(sorted(proofs, key=proofs.__getitem__))
    keys = product(images, models, ordered)
    return Matrix(tuple(images), tuple(models), ordered, tuple(cells.get(key) or MatrixCell(*key) for key in keys))


def word_of(judged: JudgedRun) -> CellWord:
    return "stale" if judged.stale else _BY_VERDICT[judged.run.verdict]


# The runs of two images side by side: the same kind, name and model, and the figures that both measured.


@dataclass(frozen=True)
class FigurePair:
    """One figure of two runs under the same conditions; None if a run has not measured it. ``figure`` is either."""

    figure: Figure
    before: Figure | None
    after: Figure | None

    @property
    def change(self) -> float | None:
        """The change of the mean as a fraction; None if there is nothing to compare."""
        if not (self.before and self.after and self.before.values and self.after.values and self.before.mean):
            return None
        return (self.after.mean - self.before.mean) / abs(self.before.mean)


@dataclass(frozen=True)
class RunPair:
    """The last runs of one kind, name and model on two images. ``unlike`` says what else differs, so that their figures
    cannot be compared; ``goldens`` names the conversations that give other tokens."""

    kind: Kind
    name: str
    model: str | None
    before: JudgedRun | None
    after: JudgedRun | None
    unlike: tuple[str, ...] = ()
    figures: tuple[FigurePair, ...] = ()
    goldens: tuple[str, ...] = ()


def pairs_side_by_side(before: Sequence[JudgedRun], after: Sequence[JudgedRun]) -> tuple[RunPair, ...]:
    """The pairs of two images' last runs."""
    old, new = _by_name(before), _by_name(after)
    return tuple(_pair(key, old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new]))


def _by_name(runs: Sequence[JudgedRun]) -> dict[tuple[Kind, str, str | None], JudgedRun]:
    return {(each.run.kind, each.run.name, each.run.subject.model): each for each in runs}


def _pair(key: tuple[Kind, str, str | None], before: JudgedRun | None, after: JudgedRun | None) -> RunPair:
    if before is None or after is None:
        return RunPair(*key, before, after)
    old, new = before.run, after.run
    differing = tuple(unlike(old, new))
    olds, news = (
        {(each.name, each.unit, *sorted(each.at.items())): each for each in run.figures} for run in (old, new)
    )
    figures = {**olds, **news}
    pairs = tuple(FigurePair(figure, olds.get(place), news.get(place)) for place, figure in figures.items())
    goldens = (
        tuple(sorted(c for c, ids in old.goldens.items() if new.goldens.get(c, ids) != ids)) if not differing else ()
    )
    return RunPair(*key, before, after, differing, pairs, goldens)
