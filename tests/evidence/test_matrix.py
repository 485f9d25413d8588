"""The table of numbers, models and proofs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.evidence import matrix
from builder.evidence.standing import ImageEvidence, JudgedRun
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from tests.evidence.runs import MODEL, bench, proof

if TYPE_CHECKING:
    from builder.evidence.matrix import Matrix
    from builder.evidence.records import Evidence


OTHER = "Org/Other-8B"
FIRST, SECOND = ImageName("small", 1), ImageName("small", 2)


def judged(run: Evidence, *stale: str, model: str = MODEL, file: str = "a.json", **changes: Any) -> JudgedRun:
    run = replace(run, subject=replace(run.subject, model=model), **{"foreign": "", "accepted": "", **changes})
    return JudgedRun(run, stale, file)


def table(**last: list[JudgedRun]) -> Matrix:
    evidence = {FIRST: ImageEvidence(last=tuple(last.get("first", ()))), SECOND: ImageEvidence()}
    evidence[SECOND] = ImageEvidence(last=tuple(last.get("second", ())))
    return matrix.build_matrix([SECOND, FIRST], (MODEL, OTHER), evidence)


def test_each_cell_has_the_word_and_the_file_of_its_run() -> None:
    made = table(first=[judged(proof(), file="p.json"), judged(bench("fail"), file="b.json")])
    cell = made.cell(FIRST, MODEL, "prove")
    assert (cell.word, cell.file) == ("proven", "evidence/small/1/p.json")
    assert made.cell(FIRST, MODEL, "bench quick").word == "failed"
    assert made.cell(SECOND, MODEL, "prove").word == "never tried"
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
    cell = made.cell(FIRST, MODEL, "prove")
    assert (cell.word, cell.why) == ("stale", "the chat template changed")


def test_what_others_ran_is_beside_the_own_run_and_proves_nothing() -> None:
    theirs = judged(proof(), foreign="archive x.tar", file="theirs.json")
    alone = table(first=[theirs]).cell(FIRST, MODEL, "prove")
    assert (alone.word, alone.file, alone.others) == ("never tried", "", "proven")
    assert alone.others_file == "evidence/small/1/theirs.json"
    both = table(first=[theirs, judged(proof("changed"), file="own.json")]).cell(FIRST, MODEL, "prove")
    assert (both.word, both.file, both.others) == ("changed", "evidence/small/1/own.json", "proven")


def test_models_are_those_of_pairings_and_of_runs() -> None:
    image = NumberedImage("2026-11-20T22:00:00Z", "small", "linux/amd64", "a", "b", 1)
    lock = Lock().with_image(FIRST, image).with_pairing(MODEL, Pairing(FIRST))
    evidence = ImageEvidence(last=(judged(proof(), model=OTHER), judged(proof(), model="")))
    assert matrix.models_of(lock, [evidence]) == (MODEL, OTHER)
