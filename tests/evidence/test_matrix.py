"""The table of numbers, models and proofs."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import UsageError
from builder.base.project import Project
from builder.evidence import matrix
from builder.evidence.standing import ImageEvidence, JudgedRun
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from tests.evidence.runs import MODEL, bench, proof

if TYPE_CHECKING:
    from pathlib import Path

    from builder.evidence.matrix import Matrix
    from builder.evidence.run_record import Evidence


OTHER = "Org/Other-8B"
FIRST, SECOND = ImageName("small", 1), ImageName("small", 2)


def judged(run: Evidence, *stale: str, model: str = MODEL, file: str = "a.json", **changes: Any) -> JudgedRun:
    own = {"foreign": "", "accepted": "", "file": file}
    run = replace(run, subject=replace(run.subject, model=model), **{**own, **changes})
    return JudgedRun(run, stale)


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


NAME = ImageName("small", 1)
CONTENT = f"sha256:{'1' * 64}"


def state(project: Project, key: Path | None = None, fingerprint: str = CONTENT) -> Path:
    return matrix.state_witness(project, NAME, fingerprint, "sha256:2", "linux/amd64", {"engine": "28.5.2"}, key)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
    return path


def test_a_machine_counts_once_and_is_not_named(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert state(project) == state(project)
    (statement,) = matrix.read_statements(project, NAME, CONTENT).statements
    assert statement.versions == {"engine": "28.5.2"}
    import socket

    assert socket.gethostname() not in state(project).read_text()


def test_a_signature_fits_its_statement_alone(tmp_path: Path, key: Path) -> None:
    project = Project(tmp_path)
    path = state(project, key)
    assert matrix.read_statements(project, NAME, CONTENT).signed == 1
    path.write_text(path.read_text().replace("28.5.2", "29.0.0"))
    (problem,) = matrix.read_statements(project, NAME, CONTENT).problems
    assert problem.message == "its signature does not fit: the statement was changed after it was signed"


def test_a_statement_of_other_content_is_a_problem(tmp_path: Path) -> None:
    project = Project(tmp_path)
    path = state(project, fingerprint=f"sha256:{'3' * 64}")
    assert "it is about other content" in matrix.read_statements(project, NAME, CONTENT).problems[0].message
    path.write_text("[]")
    assert "it is no statement" in matrix.read_statements(project, NAME, CONTENT).problems[0].message


def test_a_key_that_cannot_sign_leaves_no_statement(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with pytest.raises(UsageError, match="cannot sign"):
        state(project, tmp_path / "none")
    assert matrix.read_statements(project, NAME, CONTENT) == matrix.Witnesses()
