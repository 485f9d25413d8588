"""The proofs that a table lacks, in the order in which they are worth trying: the cheapest first, by earlier runs.

Every run that ends is evidence, so that what is missing afterwards is what is left to do.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.evidence.matrix import NEVER, proof_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from builder.evidence.matrix import Matrix, MatrixCell
    from builder.lock.model import ImageName, Lock

PROVE = proof_of("prove", "behaviour")
# Seconds, where nothing like it was ever run: vLLM's front end starts within a minute, a server takes several.
_FIRST_TIME = {"prove": 90.0, "bench": 900.0}


@dataclass(frozen=True)
class MissingProof:
    """A cell that was never tried, or is stale. ``seconds`` is what it will probably take, ``is_guess`` if nothing like
    it was ever run."""

    image: ImageName
    model: str
    proof: str
    why: str
    seconds: float
    is_guess: bool

    @property
    def kind(self) -> str:
        """The command that runs it."""
        return self.proof.partition(" ")[0]


def missing(matrix: Matrix, proofs: Collection[str], images: Collection[ImageName]) -> tuple[MissingProof, ...]:
    """The cells of ``matrix`` that are to be filled by one of ``proofs`` on one of ``images``."""
    times = _times(matrix)
    every = (
        matrix.cell(image, model, proof)
        for image in matrix.images
        if image in images
        for model in matrix.models
        for proof in proofs
    )
    return tuple(_missing(cell, times) for cell in every if cell.word in {NEVER, "stale"})


def cheapest_first(lock: Lock, steps: Collection[MissingProof]) -> tuple[MissingProof, ...]:
    """The steps in their order. Of those that take equally long, the pairings of images.lock come first, and then the
    newest numbers."""
    now = {(record.pairing.image, model) for model, record in lock.models.items()}
    before = {(each.image, model) for model, record in lock.models.items() for each in record.previous}

    def order(step: MissingProof) -> tuple[float, int, int, str, str]:
        pair = (step.image, step.model)
        rank = 0 if pair in now else 1 if pair in before else 2
        return (round(step.seconds), rank, -step.image.number, step.image.repository, step.model)

    return tuple(sorted(steps, key=order))


def _missing(cell: MatrixCell, times: dict[tuple[str, str], float]) -> MissingProof:
    seconds = times.get((cell.proof, cell.model)) or times.get((cell.proof, ""))
    why = f"stale: {cell.why}" if cell.word == "stale" else cell.word
    guess = _FIRST_TIME.get(cell.proof.partition(" ")[0], _FIRST_TIME["bench"])
    return MissingProof(cell.image, cell.model, cell.proof, why, seconds or guess, not seconds)


def _times(matrix: Matrix) -> dict[tuple[str, str], float]:
    """The usual seconds of a proof with each model, and under an empty name with any."""
    taken: dict[tuple[str, str], list[float]] = {}
    for proof, model, seconds in _taken(matrix):
        taken.setdefault((proof, model), []).append(seconds)
        taken.setdefault((proof, ""), []).append(seconds)
    return {key: statistics.median(values) for key, values in taken.items()}


def _taken(matrix: Matrix) -> Iterator[tuple[str, str, float]]:
    for tried in matrix.cells.values():
        for cell in tried:
            if cell.seconds > 0:
                yield cell.proof, cell.model, cell.seconds
