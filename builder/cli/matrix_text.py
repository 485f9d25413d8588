"""The table of numbers, models and proofs as text and as JSON."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from builder import humanize
from builder.cli import folding, output, table, terminal_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.evidence.matrix import CellWord, Matrix, MatrixCell

_COLOURS = {"proven": "green", "changed": "yellow", "failed": "red", "stale": "yellow"}
# One character each, for tables with more models than words fit beside each other.
_MARKS: Mapping[CellWord, str] = {
    "proven": "+",
    "changed": "~",
    "failed": "x",
    "stale": "o",
    "unclear": "?",
    "never tried": ".",
}
_SHORT = {"never tried": "-"}
_OTHERS = "*"


def print_matrix(matrix: Matrix) -> None:
    """Prints the table: words under the names of the models, under letters, or marks, as the terminal has room."""
    if not matrix.images or not matrix.models:
        empty = "no model is paired with an image, or was run on one: `builder pair MODEL IMAGE` pairs them"
        output.print_result(empty if matrix.images else "no images yet: `builder build TARGET` makes the first")
        return
    letters = [_letter(place) for place in range(len(matrix.models))]
    headings, words = list(matrix.models), True
    if not _fits(rows := _rows(matrix, words=True), headings):
        headings = letters
    if not _fits(rows, headings):
        words, rows = False, _rows(matrix, words=False)
    table.print_table(("IMAGE", "PROOF", *headings), rows)
    output.print_line()
    if headings is letters:
        table.print_facts(list(zip(letters, matrix.models, strict=True)))
        output.print_line()
    if not words:
        output.print_result(", ".join(f"{mark} {word}" for word, mark in _MARKS.items()))
    if any(cell.others for tried in matrix.cells.values() for cell in tried):
        output.print_result(f"{_OTHERS} ran elsewhere as well, which counts for nothing here: --json has those runs")
    counts = ", ".join(f"{count:,} {word}" for word, count in matrix.counts().items() if count)
    pairs = humanize.counted(len(matrix.images) * len(matrix.models), "pair")
    each = f" with {len(matrix.proofs)} proofs each" if len(matrix.proofs) > 1 else ""
    output.print_result(f"of {pairs}{each}: {counts}")
    if missing := _first_missing(matrix):
        prove = f"builder prove {missing.image} {missing.model}"
        output.print_result(f"to prove the first that is missing or stale: `{prove}`")


def document(matrix: Matrix) -> dict[str, Any]:
    """The table as JSON: every cell, with the file of its run."""
    return {
        "images": [str(image) for image in matrix.images],
        "models": list(matrix.models),
        "proofs": list(matrix.proofs),
        "cells": [
            _cell(matrix.cell(image, model, proof))
            for image in matrix.images
            for model in matrix.models
            for proof in matrix.proofs
        ],
    }


def _first_missing(matrix: Matrix) -> MatrixCell | None:
    """The first pair that was never proven, or whose proof is stale."""
    cells = (matrix.cell(image, model, "prove") for image in matrix.images for model in matrix.models)
    return next((cell for cell in cells if cell.word in {"never tried", "stale"}), None)


def _rows(matrix: Matrix, *, words: bool) -> list[tuple[str, ...]]:
    """A row for each image and proof that was tried with one of the models, at least the first proof."""
    rows = []
    for image in matrix.images:
        tried = {cell.proof for model in matrix.models for cell in matrix.cells.get((image, model), ())}
        shown = [proof for proof in matrix.proofs if proof in tried] or list(matrix.proofs[:1])
        for place, proof in enumerate(shown):
            cells = (matrix.cell(image, model, proof) for model in matrix.models)
            shown_cells = (_shown(cell.word, bool(cell.others), words=words) for cell in cells)
            rows.append(("" if place else str(image), proof, *shown_cells))
    return rows


def _fits(rows: Sequence[tuple[str, ...]], headings: Sequence[str]) -> bool:
    everything = (("IMAGE", "PROOF", *headings), *rows)
    widths = (max(folding.columns_of(row[place]) for row in everything) for place in range(len(headings) + 2))
    return sum(widths) + len(table.GAP) * (len(headings) + 1) <= table.width()


@functools.cache
def _shown(word: CellWord, ran_elsewhere: bool, *, words: bool) -> str:
    text = _SHORT.get(word, word) if words else _MARKS[word]
    return _word(word, text) + (_OTHERS if ran_elsewhere else "")


def _word(word: str, text: str = "") -> str:
    return terminal_text.styled(text or word, fg=_COLOURS.get(word))


def _letter(place: int) -> str:
    """A, B … Z, AA, AB …"""
    before, last = divmod(place, 26)
    return (_letter(before - 1) if before else "") + chr(ord("A") + last)


def _cell(cell: MatrixCell) -> dict[str, Any]:
    return {
        "image": str(cell.image),
        "model": cell.model,
        "proof": cell.proof,
        "word": cell.word,
        "why": cell.why,
        "run": cell.file or None,
        "started": cell.started or None,
        "seconds": cell.seconds or None,
        "others": {"word": cell.others, "run": cell.others_file} if cell.others else None,
    }
