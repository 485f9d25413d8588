"""What ``builder prove`` prints, and what ``--accept`` records: from runs that are on record, no engine is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builder.base.project import Project
from builder.cli import measure_cli
from builder.cli.options import Context
from builder.evidence import run_record, standing
from builder.evidence.run_record import Evidence, Finding, ProvedImage
from builder.lab.prove import judging
from builder.lock import lock_file, text
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from tests import projects
from tests.evidence.runs import COMMIT, MODEL, proof

NAME = ImageName("small", 1)
COUNTS = {"conversations": 68, "outputs": 22, "properties": 512, "compared": 90, "failed": 0, "changed": 1}
GOLDEN = Finding("golden", "steps", "changed", "other than at small:1:\n- <think>\n+ <thought>")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A number that serves a model."""
    made = projects.make(tmp_path)
    image = NumberedImage("2026-11-20T22:00:00Z", "small", "linux/amd64", f"sha256:{1:064x}", "sha256:2", 1)
    lock = Lock().with_image(NAME, image).with_pairing(MODEL, Pairing(NAME, "recipes/chat.yaml", COMMIT))
    projects.write(made.lock, text.dump_lock(lock))
    return made


def add(project: Project, verdict: str, model: str = MODEL, **changes: Any) -> Evidence:
    subject = standing.present_subject(project, lock_file.read_lock(project.lock), NAME, model, "prove")
    run = proof(verdict, **{"subject": subject, "counts": COUNTS, "raw": None, **changes})
    run_record.add_run(project, NAME, run)
    return run


def invoke(project: Project, *arguments: str) -> Result:
    return CliRunner().invoke(measure_cli.prove, arguments, obj=Context(project.root), standalone_mode=False)


def printed(capsys: pytest.CaptureFixture[str], evidence: Evidence, **more: str) -> list[str]:
    measure_cli.print_proof(ProvedImage(NAME, evidence, "evidence/small/1/run.json", **more))
    return capsys.readouterr().out.splitlines()


def test_a_change_is_accepted_for_its_model_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Another model of the image may have failed: without a model, nothing could be accepted."""
    measure_cli.print_proof(ProvedImage(NAME, proof("changed", findings=(GOLDEN,)), "evidence/small/1/run.json"))
    assert f"`builder prove small:1 {MODEL} --accept` accepts the change" in capsys.readouterr().err


def test_one_that_is_proven_says_so_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    done = "68 conversations and 22 outputs in 1 min 02 s, 90 compared with the previous number"
    line = f"proven: {MODEL} on small:1, {done}"
    assert printed(capsys, proof(counts=COUNTS)) == [line]
    assert printed(capsys, proof(counts={**COUNTS, "too_long": 3})) == [f"{line}, 3 longer than the context"]


def test_what_is_other_than_before_stands_below_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, proof("changed", counts=COUNTS, findings=(GOLDEN,)), stand_in="the Hub does not answer")
    assert lines[0].startswith(f"changed: {MODEL} on small:1, 68 conversations")
    assert lines[1:] == [
        "  with a substitute for the model's tokenizer: the Hub does not answer",
        "  changed golden steps: other than at small:1:",
        "    - <think>",
        "    + <thought>",
    ]


def test_of_many_findings_ten_are_shown_and_the_file_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    findings = tuple(replace(GOLDEN, check="content", verdict="fail", text=f"number {n}") for n in range(12))
    lines = printed(capsys, proof("fail", counts=COUNTS, findings=findings))
    assert lines[0].startswith("failed: ")
    assert lines[1:] == [
        *(f"  fail content steps: number {n}" for n in range(10)),
        "  and 2 more, in evidence/small/1/run.json",
    ]


def test_one_without_answers_has_no_counts(capsys: pytest.CaptureFixture[str]) -> None:
    why = Finding("front end", "", "unclear", "an image without vLLM")
    assert printed(capsys, proof("unclear", counts={}, findings=(why,))) == [
        f"unclear: {MODEL} on small:1",
        "  unclear front end: an image without vLLM",
    ]


def test_text_of_a_model_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, proof("changed", counts=COUNTS, findings=(replace(GOLDEN, text="a\x1b[2Jb"),)))
    assert not [line for line in lines if "\x1b" in line]


def test_changes_that_are_meant_are_accepted_with_the_reason(project: Project) -> None:
    changed = add(project, "changed", findings=(GOLDEN,))
    done = invoke(project, "small:1", "--accept", "--note", "the new template thinks aloud")
    assert (done.return_value, done.exception) == (0, None)
    assert done.output.splitlines()[1:] == ["  accepted: the new template thinks aloud"]
    before, after = run_record.of_image(project, NAME)
    assert before.verdict == "changed"
    assert (after.verdict, after.accepted, after.findings) == ("pass", "the new template thinks aloud", (GOLDEN,))
    assert after.goldens == changed.goldens
    found = judging.find_reference(project, lock_file.read_lock(project.lock), "small", 2, MODEL)
    assert found
    assert (found.image, found.goldens) == ("small:1", changed.goldens)


def test_accepted_changes_as_json(project: Project) -> None:
    add(project, "changed", findings=(GOLDEN,))
    add(project, "changed", "Org/Other", findings=(GOLDEN,))
    document = json.loads(invoke(project, "small:1", MODEL, "--accept", "--json").output)
    (only,) = document["proofs"]
    assert document["image"] == "small:1"
    assert (only["model"], only["verdict"], only["accepted"]) == (MODEL, "pass", "accepted")
    assert only["findings"] == [{"check": "golden", "at": "steps", "verdict": "changed", "text": GOLDEN.text}]
    assert (project.root / only["file"]).is_file()
    assert sum(run.verdict == "pass" for run in run_record.of_image(project, NAME)) == 1


@pytest.mark.parametrize(
    ("verdict", "code", "message"),
    [
        ("", 2, "small:1 was not proven"),
        ("fail", 2, "a failure cannot be accepted"),
        ("pass", 1, "found no changes"),
        ("unclear", 1, "found no changes"),
    ],
)
def test_what_cannot_be_accepted_is_left(project: Project, verdict: str, code: int, message: str) -> None:
    if verdict:
        add(project, verdict)
    done = invoke(project, "small:1", "--accept")
    assert message in str(done.exception)
    assert getattr(done.exception, "exit_code", None) == code
    assert len(list(project.evidence.rglob("*.json"))) == bool(verdict)


def test_a_later_failure_takes_the_place_of_changes(project: Project) -> None:
    add(project, "changed", findings=(GOLDEN,))
    add(project, "fail")
    assert "cannot be accepted" in str(invoke(project, "small:1", "--accept").exception)


def test_a_note_goes_with_accept_alone(project: Project) -> None:
    assert "--note is allowed only with --accept" in str(invoke(project, "small:1", "--note", "why").exception)
