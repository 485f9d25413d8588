"""The table of numbers, models and proofs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.evidence import standing
from builder.evidence.standing import ImageEvidence, JudgedRun
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from tests.evidence.runs import MODEL, bench, proof

if TYPE_CHECKING:
    from builder.evidence.run_record import Evidence
    from builder.evidence.standing import Matrix, MatrixCell


OTHER = "Org/Other-8B"
FIRST, SECOND = ImageName("small", 1), ImageName("small", 2)


def judged(run: Evidence, *stale: str, model: str = MODEL, file: str = "a.json", **changes: Any) -> JudgedRun:
    own = {"accepted": "", "file": file}
    run = replace(run, subject=replace(run.subject, model=model), **{**own, **changes})
    return JudgedRun(run, stale)


def table(**last: list[JudgedRun]) -> Matrix:
    evidence = {FIRST: ImageEvidence(last=tuple(last.get("first", ()))), SECOND: ImageEvidence()}
    evidence[SECOND] = ImageEvidence(last=tuple(last.get("second", ())))
    return standing.build_matrix([SECOND, FIRST], (MODEL, OTHER), evidence)


def cell_of(made: Matrix, image: ImageName, proof: str) -> MatrixCell:
    return next(each for each in made.cells if (each.image, each.model, each.proof) == (image, MODEL, proof))


def test_each_cell_has_the_word_and_the_file_of_its_run() -> None:
    made = table(first=[judged(proof(), file="p.json"), judged(bench("fail"), file="b.json")])
    cell = cell_of(made, FIRST, "prove")
    assert (cell.word, cell.run) == ("proven", "evidence/small/1/p.json")
    assert cell_of(made, FIRST, "bench quick").word == "failed"
    assert cell_of(made, SECOND, "prove").word == "never tried"
    assert made.proofs == ("prove", "bench quick")
    assert made.counts() == {
        "proven": 1,
        "changed": 0,
        "failed": 1,
        "unclear": 0,
        "stale": 0,
        "never tried": 6,
    }


def test_a_stale_run_says_why_whatever_its_verdict_was() -> None:
    made = table(first=[judged(proof("fail"), "the chat template changed")])
    cell = cell_of(made, FIRST, "prove")
    assert (cell.word, cell.why) == ("stale", "the chat template changed")


def test_models_are_those_of_pairings_and_of_runs() -> None:
    image = NumberedImage("2026-11-20T22:00:00Z", "small", "linux/amd64", "a", "b", 1)
    lock = Lock().with_image(FIRST, image).with_pairing(MODEL, Pairing(FIRST))
    evidence = ImageEvidence(last=(judged(proof(), model=OTHER), judged(proof(), model="")))
    assert standing.models_of(lock, [evidence]) == (MODEL, OTHER)
