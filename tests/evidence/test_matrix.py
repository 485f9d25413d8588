"""The table of numbers, models and proofs, and the order in which its gaps are filled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.evidence import filling, matrix
from builder.evidence.overview import ImageEvidence, JudgedRun
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from tests.evidence.runs import MODEL, bench, proof

if TYPE_CHECKING:
    from builder.evidence.matrix import Matrix
    from builder.evidence.record import Evidence

OTHER = "Org/Other-8B"
FIRST, SECOND = ImageName("small", 1), ImageName("small", 2)


def judged(run: Evidence, *stale: str, model: str = MODEL, file: str = "a.json", **changes: Any) -> JudgedRun:
    run = replace(run, subject=replace(run.subject, model=model), **{"foreign": "", "accepted": "", **changes})
    return JudgedRun(run, stale, file)


def table(**last: list[JudgedRun]) -> Matrix:
    evidence = {FIRST: ImageEvidence(last=tuple(last.get("first", ()))), SECOND: ImageEvidence()}
    evidence[SECOND] = ImageEvidence(last=tuple(last.get("second", ())))
    return matrix.of([SECOND, FIRST], (MODEL, OTHER), evidence)


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
    missing = filling.missing(table(first=[theirs]), [filling.PROVE], [FIRST])
    assert [step.model for step in missing] == [MODEL, OTHER]


def test_models_are_those_of_pairings_and_of_runs() -> None:
    lock = lock_with(FIRST).with_pairing(MODEL, Pairing(FIRST))
    evidence = ImageEvidence(last=(judged(proof(), model=OTHER), judged(proof(), model="")))
    assert matrix.models_of(lock, [evidence]) == (MODEL, OTHER)


def lock_with(*names: ImageName) -> Lock:
    lock = Lock()
    for name in names:
        lock = lock.with_image(name, NumberedImage("2026-11-20T22:00:00Z", "small", "linux/amd64", "a", "b", 1))
    return lock


def test_gaps_are_what_was_never_tried_and_what_is_stale() -> None:
    made = table(
        first=[judged(proof("changed")), judged(proof(), "the image has other content", model=OTHER)],
        second=[judged(proof("unclear")), judged(proof("fail"), model=OTHER)],
    )
    missing = filling.missing(made, [filling.PROVE], [FIRST, SECOND])
    assert [(step.image, step.model, step.why) for step in missing] == [
        (FIRST, OTHER, "stale: the image has other content")
    ]


def test_only_images_that_can_be_tried_are_filled() -> None:
    assert {step.image for step in filling.missing(table(), [filling.PROVE], [SECOND])} == {SECOND}


def test_the_cheapest_goes_first_by_earlier_runs_of_the_same_model() -> None:
    made = table(
        first=[
            judged(proof(), seconds=500, started="2026-11-20T22:00:00Z"),
            judged(proof(), model=OTHER, seconds=20, started="2026-11-20T22:00:00Z"),
        ]
    )
    lock = lock_with(FIRST, SECOND)
    steps = filling.cheapest_first(lock, filling.missing(made, [filling.PROVE, "bench quick"], [SECOND]))
    assert [(step.model, step.proof, step.seconds, step.is_guess) for step in steps] == [
        (OTHER, "prove", 20, False),
        (MODEL, "prove", 500, False),
        (MODEL, "bench quick", 900, True),
        (OTHER, "bench quick", 900, True),
    ]


def test_of_equally_long_ones_pairings_go_first_then_the_newest_number() -> None:
    lock = lock_with(FIRST, SECOND).with_pairing(OTHER, Pairing(FIRST))
    steps = filling.cheapest_first(lock, filling.missing(table(), [filling.PROVE], [FIRST, SECOND]))
    assert [(step.image, step.model) for step in steps] == [
        (FIRST, OTHER),
        (SECOND, MODEL),
        (SECOND, OTHER),
        (FIRST, MODEL),
    ]


def test_what_ran_meanwhile_is_no_gap_any_more() -> None:
    """So a fill that was killed goes on with the rest."""
    before = filling.missing(table(), [filling.PROVE], [FIRST, SECOND])
    after = filling.missing(table(first=[judged(proof())]), [filling.PROVE], [FIRST, SECOND])
    assert len(before) - len(after) == 1
    assert {(step.image, step.model) for step in before} - {(step.image, step.model) for step in after} == {
        (FIRST, MODEL)
    }
