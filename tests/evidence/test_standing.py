"""A run is stale by what it belongs to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.machine_record import Machine
from builder.evidence import standing
from builder.evidence.standing import ImageEvidence, PairingStanding
from tests.evidence.runs import COMMIT, MACHINE, MODEL, SUBJECT, bench, proof

if TYPE_CHECKING:
    from builder.evidence.run_record import Evidence, Kind, Subject


def test_a_run_of_the_same_subject_counts_whatever_its_age() -> None:
    assert standing.stale_reasons(proof(started="1999-01-01T00:00:00Z"), SUBJECT) == ()


@pytest.mark.parametrize("part", ["model", "revision", "template", "recipe", "arguments"])
def test_a_part_that_was_not_looked_at_is_not_compared(part: str) -> None:
    nothing: dict[str, Any] = {part: None}
    without = replace(SUBJECT, **nothing)
    assert standing.stale_reasons(proof(), without) == ()
    assert standing.stale_reasons(proof(subject=without), SUBJECT) == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fingerprint": "sha256:9"}, "the image has different content"),
        ({"model": "Org/Other"}, "the model is now Org/Other"),
        ({"revision": "cd" * 20}, "the model's revision changed from abababababab to cdcdcdcdcdcd"),
        ({"template": f"sha256:{9:064x}"}, "the chat template changed"),
        ({"recipe": "recipes/b.yaml"}, "the recipe changed from chat to b"),
        ({"arguments": f"sha256:{9:064x}"}, "the recipe's options changed"),
        ({"overrides": {"a": "1"}}, "the run did not use these options"),
    ],
)
def test_each_part_that_is_another_now_is_a_reason(change: dict[str, Any], told: str) -> None:
    assert standing.stale_reasons(proof(), replace(SUBJECT, **change)) == (told,)


def test_only_commits_tell_that_a_model_moved() -> None:
    assert standing.stale_reasons(proof(), replace(SUBJECT, revision="main")) == ()
    assert standing.stale_reasons(proof(subject=replace(SUBJECT, revision="v1")), SUBJECT) == ()
    assert SUBJECT.revision == COMMIT


def test_the_number_of_an_image_is_only_a_name() -> None:
    assert standing.stale_reasons(proof(), replace(SUBJECT, image="vllm-node-tf5:9")) == ()


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (replace(MACHINE, gpu="NVIDIA H100"), "the machine changed: GPU: NVIDIA GB10 → NVIDIA H100"),
        (replace(MACHINE, gpus=2), "the machine changed: GPU: NVIDIA GB10 → 2 x NVIDIA GB10"),
        (replace(MACHINE, driver="590.1"), "the machine changed: driver: 580.95 → 590.1"),
    ],
)
def test_another_machine_is_a_reason(now: Machine, told: str) -> None:
    present = replace(SUBJECT, overrides={"max_model_len": "4096"}, machine=now)
    assert standing.stale_reasons(bench(), present) == (told,)
    assert standing.stale_reasons(bench(), replace(present, machine=None)) == ()


def test_without_a_gpu_the_processor_counts() -> None:
    run = bench(subject=replace(SUBJECT, machine=Machine(cpu="A")))
    assert standing.stale_reasons(run, replace(SUBJECT, machine=Machine(cpu="B"))) == (
        "the machine changed: processor: A → B",
    )


def test_another_set_is_another_figure() -> None:
    now = f"sha256:{9:064x}"
    assert standing.stale_reasons(proof(), SUBJECT, now) == ("the conversations changed",)
    assert standing.stale_reasons(proof(), SUBJECT, proof().set) == ()
    assert standing.stale_reasons(proof(set=""), SUBJECT, now) == ()


# One word for how a number stands.


def same(_kind: Kind) -> Subject:
    return SUBJECT


def other(_kind: Kind) -> Subject:
    return replace(SUBJECT, arguments=f"sha256:{9:064x}")


def own_bench(verdict: str) -> Evidence:
    return bench(verdict, subject=SUBJECT)


@pytest.mark.parametrize(
    ("verdict", "word"), [("pass", "proven"), ("changed", "changed"), ("fail", "failed"), ("unclear", "unproven")]
)
def test_the_latest_proof_decides(verdict: str, word: str) -> None:
    assert standing.standing_of(MODEL, [proof("pass"), proof("fail"), proof(verdict)], same).standing == word


def test_nothing_proves_nothing() -> None:
    assert standing.standing_of(MODEL, [], same) == PairingStanding(MODEL, "unproven")
    assert standing.standing_of(MODEL, [own_bench("pass")], same).standing == "unproven"
    assert standing.standing_of("Org/Other", [proof()], same).standing == "unproven"


@pytest.mark.parametrize("verdict", ["pass", "changed", "fail"])
def test_a_stale_proof_says_why(verdict: str) -> None:
    stands = standing.standing_of(MODEL, [proof(verdict)], other)
    assert (stands.standing, stands.why) == ("stale", "the recipe's options changed")


def test_changes_that_were_accepted_are_proven() -> None:
    stands = standing.standing_of(MODEL, [proof("changed"), proof("pass", accepted="new template")], same)
    assert (stands.standing, stands.why) == ("proven", "new template")


def test_a_required_run_that_failed_counts_while_it_is_not_stale() -> None:
    runs = [proof(), own_bench("pass"), own_bench("fail")]
    assert standing.standing_of(MODEL, runs, same).standing == "proven"
    assert standing.standing_of(MODEL, runs, same, [("bench", "quick")]).standing == "failed"
    assert standing.standing_of(MODEL, [*runs, own_bench("pass")], same, [("bench", "quick")]).standing == "proven"
    assert standing.standing_of(MODEL, runs, same, [("bench", "other")]).standing == "proven"
    assert standing.standing_of(MODEL, runs, other, [("bench", "quick")]).standing == "stale"


def test_another_set_makes_a_proof_stale() -> None:
    sets: dict[standing.Requirement, str] = {("prove", "behaviour"): f"sha256:{9:064x}"}
    assert standing.standing_of(MODEL, [proof()], same, sets=sets).standing == "stale"


def test_of_several_models_the_worst_is_shown() -> None:
    words = ["proven", "failed", "unproven"]
    assert standing.worst([PairingStanding(None, word) for word in words]) == "failed"  # type: ignore[arg-type]
    assert standing.worst([]) is None


@pytest.mark.parametrize("verdict", ["unclear", "fail", "pass"])
def test_a_trial_with_another_recipe_leaves_what_is_known_of_the_one_that_serves(verdict: str) -> None:
    trial = proof(verdict, subject=replace(SUBJECT, recipe="recipes/trial.yaml"))
    assert standing.standing_of(MODEL, [proof(), trial], same).standing == "proven"
    # Where there is no other proof, the reason for which it does not count is said.
    assert standing.standing_of(MODEL, [trial], same).standing == "stale"


def test_a_model_that_was_only_tried_says_nothing_of_the_image() -> None:
    pairings = (PairingStanding(MODEL, "proven"), PairingStanding("Org/Tried", "failed"))
    assert ImageEvidence(pairings=pairings, served=frozenset({MODEL})).standing == "proven"
    assert ImageEvidence(pairings=pairings, serves=frozenset({MODEL})).standing == "proven"
    assert ImageEvidence(pairings=pairings).standing == "failed"
