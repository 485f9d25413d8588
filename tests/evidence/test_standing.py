"""One word for how a number stands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.evidence import standing
from builder.evidence.standing import ImageEvidence, PairingStanding
from tests.evidence.runs import MODEL, SUBJECT, bench, proof

if TYPE_CHECKING:
    from builder.evidence.records import Evidence, Kind, Subject


def same(_kind: Kind) -> Subject:
    return SUBJECT


def other(_kind: Kind) -> Subject:
    return replace(SUBJECT, arguments=f"sha256:{9:064x}")


def own_bench(verdict: str) -> Evidence:
    return bench(verdict, foreign="", subject=SUBJECT)


@pytest.mark.parametrize(
    ("verdict", "word"), [("pass", "proven"), ("changed", "changed"), ("fail", "failed"), ("unclear", "unproven")]
)
def test_the_latest_proof_decides(verdict: str, word: str) -> None:
    assert standing.standing_of(MODEL, [proof("pass"), proof("fail"), proof(verdict)], same).standing == word


def test_nothing_proves_nothing() -> None:
    assert standing.standing_of(MODEL, [], same) == PairingStanding(MODEL, "unproven")
    assert standing.standing_of(MODEL, [own_bench("pass")], same).standing == "unproven"
    assert standing.standing_of("Org/Other", [proof()], same).standing == "unproven"


def test_others_prove_nothing() -> None:
    stands = standing.standing_of(MODEL, [proof(foreign="archive x.tar")], same)
    assert (stands.standing, stands.has_foreign, stands.why) == ("unproven", True, "proven elsewhere")
    assert standing.standing_of(MODEL, [proof("fail"), proof(foreign="registry")], same).standing == "failed"


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
