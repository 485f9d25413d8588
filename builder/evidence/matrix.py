"""Numbers, models and proofs as a table: a word for each, and the run that it comes from.

The project's own runs decide. What others ran is named beside, and makes no cell proven.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from builder.evidence.overview import ImageEvidence, JudgedRun
    from builder.evidence.record import Kind
    from builder.lock.model import ImageName, Lock

CellWord = Literal["proven", "changed", "failed", "stale", "unclear", "never tried"]
_NEVER: CellWord = "never tried"
_BY_VERDICT: dict[str, CellWord] = {"pass": "proven", "changed": "changed", "fail": "failed", "unclear": "unclear"}
_KINDS: tuple[Kind, ...] = ("prove", "bench", "probe")
_BEHAVIOUR = "behaviour"


@dataclass(frozen=True)
class MatrixCell:
    """One proof of a model on an image. ``file`` is the path of its run in the project, ``seconds`` the time that it
    took and ``why`` what there is to say of it. ``others`` is the word for the last run of others,
    ``others_file`` its path; where nothing of the project's own is there, ``word`` is ``never tried`` all the same."""

    image: ImageName
    model: str
    proof: str
    word: CellWord
    why: str = ""
    file: str = ""
    started: str = ""
    seconds: float = 0.0
    others: CellWord | None = None
    others_file: str = ""


@dataclass(frozen=True)
class Matrix:
    """The table: ``images`` the newest of a repository first, ``models`` sorted, ``proofs`` as they are called
    (``prove``, ``bench quick``), and the cells that were tried. Every other one was never tried."""

    images: tuple[ImageName, ...]
    models: tuple[str, ...]
    proofs: tuple[str, ...]
    cells: Mapping[tuple[ImageName, str], tuple[MatrixCell, ...]]

    def cell(self, image: ImageName, model: str, proof: str) -> MatrixCell:
        """The cell of a proof."""
        tried = self.cells.get((image, model), ())
        return next((cell for cell in tried if cell.proof == proof), MatrixCell(image, model, proof, _NEVER))

    def counts(self) -> dict[CellWord, int]:
        """The number of cells of each word, of all images, models and proofs."""
        counts: dict[CellWord, int] = dict.fromkeys((*_BY_VERDICT.values(), "stale"), 0)
        for cell in (cell for tried in self.cells.values() for cell in tried if cell.word != _NEVER):
            counts[cell.word] += 1
        total = len(self.images) * len(self.models) * len(self.proofs)
        return {**counts, _NEVER: total - sum(counts.values())}


def models_of(lock: Lock, evidence: Iterable[ImageEvidence]) -> tuple[str, ...]:
    """The models that images are paired with, and those that one was run with, sorted."""
    run_with = {each.run.subject.model for image in evidence for each in image.last}
    return tuple(sorted({*lock.models, *filter(None, run_with)}))


def of(images: Collection[ImageName], models: Collection[str], evidence: Mapping[ImageName, ImageEvidence]) -> Matrix:
    """The table of these images and models, by the last runs of each image."""
    wanted = frozenset(models)
    cells: dict[tuple[ImageName, str], tuple[MatrixCell, ...]] = {}
    proofs = {_proof_of("prove", _BEHAVIOUR): ("prove", "")}
    for name in images:
        by_model: dict[str, list[JudgedRun]] = {}
        for each in evidence[name].last if name in evidence else ():
            if each.run.subject.model in wanted:
                by_model.setdefault(each.run.subject.model or "", []).append(each)
                proofs[_proof_of(each.run.kind, each.run.name)] = (each.run.kind, each.run.name)
        cells |= {(name, model): tuple(_cells(name, model, runs)) for model, runs in by_model.items()}
    order = sorted(proofs, key=lambda proof: (_KINDS.index(proofs[proof][0]), proofs[proof][1]))
    return Matrix(tuple(images), tuple(models), tuple(order), cells)


def _proof_of(kind: Kind, name: str) -> str:
    """The name of a proof in the table: that of the command, and of the profile or probe."""
    return kind if (kind, name) == ("prove", _BEHAVIOUR) else f"{kind} {name}"


def word_of(judged: JudgedRun) -> CellWord:
    """The word for a run."""
    return "stale" if judged.stale else _BY_VERDICT[judged.run.verdict]


def _cells(name: ImageName, model: str, runs: list[JudgedRun]) -> Iterator[MatrixCell]:
    by_proof: dict[str, list[JudgedRun]] = {}
    for each in runs:
        by_proof.setdefault(_proof_of(each.run.kind, each.run.name), []).append(each)
    for proof, of_proof in by_proof.items():
        own = next((each for each in of_proof if not each.run.foreign), None)
        theirs = next((each for each in of_proof if each.run.foreign), None)
        others, others_file = (word_of(theirs), _path(name, theirs)) if theirs else (None, "")
        if own is None:
            yield MatrixCell(name, model, proof, _NEVER, others=others, others_file=others_file)
            continue
        why = "; ".join(own.stale) or own.run.accepted
        run = own.run
        yield MatrixCell(
            name, model, proof, word_of(own), why, _path(name, own), run.started, run.seconds, others, others_file
        )


def _path(name: ImageName, judged: JudgedRun) -> str:
    return f"evidence/{name.repository}/{name.number}/{judged.file}"
