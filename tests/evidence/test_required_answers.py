"""The same answers as the current image's, as a model requires them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.definitions import configuration
from builder.definitions.configuration import RequiredEvidence
from builder.evidence import requirements
from builder.evidence.requirements import MissingEvidence
from builder.evidence.run_record import SAME, Evidence, Figure
from builder.lock.model import Lock
from tests import projects
from tests.evidence import runs
from tests.evidence.test_requirements import NEW, OLD, lacking, make, proof, recorded, subject

if TYPE_CHECKING:
    from pathlib import Path

WANTED = RequiredEvidence(same=0.005)
SAYS = "same small:1: perplexity changed by"
REFERENCE = recorded(OLD).present("same").fingerprint


def compared(low: float, high: float, reference: str = REFERENCE, **more: Any) -> Evidence:
    """A comparison whose change of perplexity lies in this band."""
    change = {"change": (low + high) / 2, "low": low, "high": high, "highest_low": low, "lowest_high": high}
    figures = tuple(Figure(f"perplexity_{name}", {}, "ratio", "", (value,)) for name, value in change.items())
    fields = {"kind": "same", "name": SAME, "figures": figures, "counts": {"texts": 200, "different": 3}, **more}
    return runs.proof(
        "changed", **{"subject": subject(NEW), "sampling": {"reference_fingerprint": reference}, **fields}
    )


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (compared(-0.001, 0.002), []),
        (compared(0.001, 0.009), [f"{SAYS} +0.50 % (confidence interval: +0.10 % to +0.90 %); required: within 0.5 %"]),
        (compared(0.011, 0.019), [f"{SAYS} +1.50 % (confidence interval: +1.10 % to +1.90 %); required: within 0.5 %"]),
        (compared(-1, 1, counts={"texts": 200}), []),  # equivalent, whatever the width of the band
        (compared(0, 0, reference="sha256:other"), ["same small:1: has not been run"]),
        (compared(0, 0, subject=subject(NEW, overrides={"--": "--dtype half"})), [
            "same small:1: is stale: the run used options that are not in the recipe"
        ]),
        (compared(0, 0, counts={"answers_differ": 1}), ["same small:1: its answers differ"]),
        (compared(0, 0, figures=()), ["same small:1: its run has no figure 'perplexity_change'"]),
        (
            compared(0, 0, counts={"prompts_differ": 1}),
            ["same small:1: its prompts differ, and no proof accepts the change"],
        ),
    ],
)  # fmt: skip
def test_a_comparison_with_the_current_image_has_to_be_within_the_limit(run: Evidence, why: list[str]) -> None:
    assert lacking(WANTED, (run,), ()) == why


def test_prompts_may_differ_where_a_proof_accepts_them() -> None:
    assert lacking(WANTED, (compared(0, 0, counts={"prompts_differ": 1}), proof()), ()) == []


def test_nothing_is_compared_where_nothing_else_serves() -> None:
    assert lacking(WANTED, ()) == []
    assert lacking(WANTED, (), ()) == ["same small:1: has not been run"]


def test_only_what_is_surely_outside_has_failed() -> None:
    def failed(run: Evidence) -> list[bool]:
        return [each.failed for each in requirements.unmet(WANTED, recorded(NEW, run), recorded(OLD))]

    assert failed(compared(0.011, 0.019)) == [True]
    assert failed(compared(0.001, 0.009)) == [False]


def test_the_command_that_compares_is_told(tmp_path: Path) -> None:
    missing = MissingEvidence("same", str(OLD), "has not been run")
    for model, word in {"Org/M": "Org/M", "~/my models/m": "'~/my models/m'"}.items():
        command = requirements.missing_command(Project(tmp_path), Lock(), missing, NEW, model)
        assert command == f"builder compare small:1 small:2 {word}"


def test_a_project_reads_what_is_required_and_refuses_other_words(tmp_path: Any) -> None:
    project, lock = make(tmp_path, '{same: "within 0.5 %"}')
    projects.write(
        project.root / "builder.yaml", f'requires: {{same: "within 2 %", {runs.MODEL}: {{same: within 1%}}}}\n'
    )
    read = configuration.load_configuration(project)
    assert read.required_of("Org/Other").same == 0.02
    assert read.required_of(runs.MODEL).same == 0.01
    (missing,) = requirements.missing(project, lock, NEW, runs.MODEL)
    assert str(missing) == "same small:1: has not been run"
    assert replace(WANTED, same=None).joined(WANTED) == WANTED
    projects.write(project.root / "builder.yaml", 'requires: {same: "<= 2 %"}\n')
    with pytest.raises(FileProblemsError, match="`<= 2 %` is not a valid condition, such as `within 0.5 %`"):
        configuration.load_configuration(project)
