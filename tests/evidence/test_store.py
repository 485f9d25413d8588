"""The files of evidence: added once, never changed, and those of others looked at first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.base import redaction
from builder.base.errors import FileProblemsError, UnsafePathError
from builder.base.project import Project
from builder.evidence import run_record
from builder.evidence.run_record import Figure, Finding
from builder.lock.model import ImageName
from tests import projects
from tests.evidence.runs import NAME, SUBJECT, bench, identity, proof


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "dockerfiles").mkdir()
    return Project(tmp_path)


def files(project: Project) -> list[str]:
    return sorted(path.name for path in run_record.evidence_folder(project, NAME).iterdir())


def test_a_run_is_one_file_named_after_its_moment_and_content(project: Project) -> None:
    evidence = proof()
    path = run_record.add_run(project, NAME, evidence)
    digest = identity(evidence)[:8]
    place = f"evidence/vllm-node-tf5/7/20261120T220000Z-prove-behaviour-{digest}.json"
    assert path.relative_to(project.root) == Path(place)
    assert run_record.of_image(project, NAME) == (replace(evidence, sequence=1),)


def test_runs_are_in_the_order_in_which_they_were_added_whatever_the_clock_said(project: Project) -> None:
    moments = ["2099-01-01T00:00:00Z", "2026-11-20T22:00:00Z", "1970-01-01T00:00:00Z"]
    for moment in moments:
        run_record.add_run(project, NAME, proof(started=moment))
    assert [run.started for run in run_record.of_image(project, NAME)] == moments


def test_the_same_run_stays_as_it_is(project: Project) -> None:
    path = run_record.add_run(project, NAME, proof())
    before = path.read_bytes()
    assert run_record.add_run(project, NAME, proof()) == path
    assert path.read_bytes() == before
    assert len(run_record.of_image(project, NAME)) == 1


def test_the_output_of_the_tool_stays_on_this_machine(project: Project) -> None:
    run_record.add_run(project, NAME, bench(raw=None), raw=b"a table\n")
    run = run_record.of_image(project, NAME)[0]
    assert run.raw is not None
    assert run_record.raw_answers(project, run.raw) == b"a table\n"
    (project.raw_evidence / run.raw.removeprefix("sha256:")).write_bytes(b"another")
    assert run_record.raw_answers(project, run.raw) is None
    assert run_record.raw_answers(project, f"sha256:{0:064x}") is None
    with pytest.raises(ValueError, match="not a digest"):
        run_record.raw_answers(project, "sha256:../../images.lock")


def test_nothing_is_written_that_could_not_be_read(project: Project) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"name": "../x"},
        {"seconds": float("nan")},
        {"verdict": "maybe"},
        {"counts": {"a": -1}},
        {"figures": (Figure("tg", {}, "tokens/s", "higher", (float("nan"),)),)},
        {"version": "\ud800"},
    )
    for changes in wrong:
        with pytest.raises(ValueError, match=r"evidence of vllm-node-tf5:7|JSON|surrogates"):
            run_record.add_run(project, NAME, proof(**changes))
    assert not project.evidence.exists()


def test_too_many_findings_are_counted_and_the_file_stays_small(project: Project) -> None:
    findings = tuple(Finding("calls", f"conversation {n}", "fail", "ä\ud800" * 5000) for n in range(1000))
    path = run_record.add_run(project, NAME, proof("fail", findings=findings))
    assert path.stat().st_size <= run_record.LARGEST
    run = run_record.of_image(project, NAME)[0]
    assert len(run.findings) + run.counts["findings_left_out"] == 1000
    assert run.findings[0].text.endswith("…")


def test_no_secret_gets_into_a_file_that_is_committed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_0123456789abcdef"
    monkeypatch.setenv("HF_TOKEN", secret)
    redaction._secret.cache_clear()
    try:
        subject = replace(SUBJECT, overrides={"api_key": "topsecret1", "served": f"x {secret}"})
        findings = (Finding("calls", secret, "fail", f"curl -H 'Bearer {secret}' http://me:password1@host/"),)
        run = bench("fail", subject=subject, findings=findings, accepted=f"because {secret}", raw=None)
        text = run_record.add_run(
            project, NAME, run, raw=f"log \udcff {secret}".encode(errors="surrogateescape")
        ).read_text()
    finally:
        redaction._secret.cache_clear()
    (kept,) = run_record.of_image(project, NAME)
    output = run_record.raw_answers(project, kept.raw or "")
    assert output == b"log \xff ***"
    for word in (secret, "topsecret1", "password1"):
        assert word not in text


def damage(project: Project, content: bytes) -> Path:
    path = run_record.add_run(project, NAME, bench(started="2026-01-01T00:00:00Z"))
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not JSON"),
        (b"{}", "required"),
        (run_record.evidence_text(bench()).encode()[:-40], "not JSON"),
        (run_record.evidence_text(bench(verdict="pass")).encode(), "was changed"),
        (b" " * (run_record.LARGEST + 1), "larger than"),
    ],
)
def test_a_damaged_file_is_told_with_its_place_and_the_others_count(
    project: Project, content: bytes, told: str
) -> None:
    run_record.add_run(project, NAME, proof())
    path = damage(project, content)
    kept = run_record.look_for_runs(project, NAME)
    assert len(kept.runs) == 1
    (problem, *_) = kept.problems
    assert problem.location.file == str(path.relative_to(project.root))
    assert told in problem.message
    with pytest.raises(FileProblemsError, match=path.name):
        run_record.of_image(project, NAME)


def test_an_edited_verdict_does_not_count(project: Project) -> None:
    path = run_record.add_run(project, NAME, proof("fail"))
    path.write_text(path.read_text().replace('"verdict": "fail"', '"verdict": "pass"'))
    assert run_record.look_for_runs(project, NAME).runs == ()


def test_another_layout_of_the_same_file_counts(project: Project) -> None:
    path = run_record.add_run(project, NAME, bench())
    run = run_record.of_image(project, NAME)
    path.write_text(json.dumps(json.loads(path.read_text())).replace(",", ",\r\n"))
    assert run_record.of_image(project, NAME) == run


def test_links_pipes_and_other_names_are_no_evidence(project: Project, tmp_path: Path) -> None:
    real = run_record.add_run(project, NAME, proof())
    elsewhere = tmp_path / "elsewhere.json"
    real.rename(elsewhere)
    real.symlink_to(elsewhere)
    os.mkfifo(real.with_name("20261120T220000Z-prove-pipe-00000000.json"))
    real.with_name("notes.txt").write_text("x")
    real.with_name("deeper").mkdir()
    kept = run_record.look_for_runs(project, NAME)
    assert kept.runs == ()
    assert len(kept.problems) == 3


def test_a_repository_may_be_named_like_a_number_of_another(project: Project) -> None:
    inner = ImageName(f"{NAME.repository}/{NAME.number}", 1)
    run_record.add_run(project, inner, proof())
    run_record.add_run(project, NAME, proof())
    assert run_record.look_for_runs(project, NAME).problems == ()
    assert run_record.evidence_images(project) == tuple(sorted([NAME, inner]))


@pytest.mark.parametrize("place", ["evidence", "evidence/vllm-node-tf5", "evidence/vllm-node-tf5/7"])
def test_a_folder_that_leads_elsewhere_is_neither_read_nor_written(
    project: Project, tmp_path_factory: pytest.TempPathFactory, place: str
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    inner = outside / Path("evidence/vllm-node-tf5/7").relative_to(place)
    inner.mkdir(parents=True, exist_ok=True)
    link = project.root / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    (problem,) = run_record.look_for_runs(project, NAME).problems
    assert "leads out" in problem.message
    with pytest.raises(UnsafePathError):
        run_record.add_run(project, NAME, proof())
    assert list(inner.iterdir()) == []


def test_every_number_is_looked_at(project: Project) -> None:
    names = [NAME, ImageName("localhost:5000/team/vllm", 12), ImageName("vllm-node-tf5", 10)]
    for name in names:
        run_record.add_run(project, name, proof())
    projects.write(project.evidence / "..odd/1/x.json", "{}")
    projects.write(project.evidence / "README.md", "")
    assert run_record.evidence_images(project) == tuple(sorted(names))
    assert run_record.evidence_images(Project(project.root / "none")) == ()


def test_a_renumbered_image_takes_its_runs_along_and_leaves_those_of_the_other(project: Project) -> None:
    """After a merge, one number is two images for a while."""
    to = ImageName("vllm-node-tf5", 9)
    theirs = replace(SUBJECT, fingerprint="sha256:9")
    for evidence in (proof(), bench(), proof("fail", subject=theirs)):
        run_record.add_run(project, NAME, evidence)
    *own, other = run_record.of_image(project, NAME)
    odd = run_record.evidence_folder(project, NAME) / "20261120T220000Z-prove-odd-00000000.json"
    odd.write_text("{}")
    for _ in range(2):  # the second time there is nothing to move any more
        run_record.move_evidence(project, NAME, to, SUBJECT.fingerprint)
        assert run_record.of_image(project, to) == tuple(own)
        assert run_record.look_for_runs(project, NAME).runs == (other,)
        assert odd.exists()
    odd.unlink()
    run_record.move_evidence(project, NAME, to, "sha256:9")
    assert not run_record.evidence_folder(project, NAME).exists()
    run_record.move_evidence(project, NAME, to, "sha256:9")


ADD = """
import sys
from pathlib import Path
from builder.evidence import run_record
from builder.base.project import Project
from tests.evidence.runs import NAME
from tests.evidence.runs import proof
print("ready", flush=True)
sys.stdin.readline()
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    run_record.add_run(Project(Path(sys.argv[1])), NAME, proof(counts={"n": n}))
"""


def adding(project: Project, first: int, last: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", ADD, str(project.root), str(first), str(last)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=projects.REPOSITORY_ROOT,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.slow
def test_several_processes_may_add_at_a_time(project: Project) -> None:
    processes = [adding(project, 0, 20), adding(project, 10, 30), adding(project, 20, 40)]
    for process in processes:
        go(process)
    for process in processes:
        with process:
            assert process.wait() == 0
    kept = run_record.look_for_runs(project, NAME)
    assert kept.problems == ()
    assert sorted(run.counts["n"] for run in kept.runs) == list(range(40))


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", [1, 4, 9, 16, 25, 36])
def test_a_killed_process_leaves_whole_files_and_nothing_that_counts(project: Project, milliseconds: int) -> None:
    with adding(project, 0, 100_000) as process:
        go(process)
        time.sleep(milliseconds / 1000)
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = run_record.look_for_runs(project, NAME)
    assert kept.problems == ()
    assert [run.counts["n"] for run in kept.runs] == list(range(len(kept.runs)))
    run_record.add_run(project, NAME, proof(counts={"after": 1}))
    assert len(run_record.of_image(project, NAME)) == len(kept.runs) + 1
