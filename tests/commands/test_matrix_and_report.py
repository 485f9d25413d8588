"""``builder matrix``: from the files alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.cli import evidence_cli, output
from builder.evidence import run_record, standing
from builder.evidence.standing import ImageEvidence, JudgedRun
from builder.lock import lock_file, text
from builder.lock.model import ImageName, Pairing
from tests import locks, program, projects
from tests.evidence.runs import COMMIT, MODEL, bench, proof
from tests.lab.report import stocked

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project
    from builder.evidence.run_record import Evidence


OTHER = "Org/Other-8B"
FIRST, SECOND = ImageName("small", 1), ImageName("small", 2)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two numbers and two models."""
    made = projects.make(tmp_path)
    lock = locks.one_after_the_other(COMMIT).with_pairing(OTHER, Pairing(SECOND))
    projects.write(made.lock, text.dump_lock(lock))
    return made


def add(project: Project, name: ImageName, evidence: Evidence) -> str:
    subject = standing.present_subject(project, lock_file.read_lock(project.lock), name, MODEL, evidence.kind)
    return project.relative(run_record.add_run(project, name, replace(evidence, subject=subject)))


def run(project: Project, *arguments: str, code: int = 0) -> str:
    done = program.run(
        [sys.executable, "-m", "builder", *arguments],
        cwd=project.root,
        env={**os.environ, "DOCKER_HOST": "unix:///nowhere", "PYTHONPATH": str(projects.REPOSITORY_ROOT)},
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr if code else done.stdout


def document(project: Project, *arguments: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(project, "matrix", "--json", *arguments))
    return content


def test_every_cell_is_there_with_its_run(project: Project) -> None:
    file = add(project, SECOND, proof("changed"))
    add(project, SECOND, bench(accepted=""))
    content = document(project)
    assert content["images"] == ["small:2", "small:1"]
    assert content["models"] == [MODEL, OTHER]
    assert content["proofs"] == ["prove", "bench quick"]
    assert len(content["cells"]) == 8
    cells = {(cell["image"], cell["model"], cell["proof"]): cell for cell in content["cells"]}
    assert cells["small:2", MODEL, "prove"]["word"] == "changed"
    assert cells["small:2", MODEL, "prove"]["run"] == file
    assert (project.root / file).is_file()
    assert cells["small:1", OTHER, "prove"] == {
        "image": "small:1",
        "model": OTHER,
        "proof": "prove",
        "word": "never tried",
        "why": "",
        "run": None,
        "started": None,
        "seconds": None,
    }


def test_the_second_time_the_memory_names_the_same_files(project: Project) -> None:
    add(project, SECOND, proof())
    add(project, FIRST, proof("fail"))
    assert document(project) == document(project)


@pytest.mark.parametrize(
    ("arguments", "images", "models"),
    [
        (("--images", "small:1"), ["small:1"], [MODEL, OTHER]),
        (("--images", "small", "--models", OTHER), ["small:2", "small:1"], [OTHER]),
        (("--models", f"{MODEL},{OTHER}"), ["small:2", "small:1"], [MODEL, OTHER]),
        (("--models", "chat"), ["small:2", "small:1"], ["Org/Model-1B"]),
    ],
)
def test_it_is_limited_to_what_is_named(
    project: Project, arguments: tuple[str, ...], images: list[str], models: list[str]
) -> None:
    recipe = project.recipes / "chat.yaml"
    projects.write(recipe, recipe.read_text().replace("org/model", MODEL))
    content = document(project, *arguments)
    assert (content["images"], content["models"]) == (images, models)


@pytest.mark.slow
def test_the_table_has_a_column_for_each_model_and_a_row_for_each_proof(project: Project) -> None:
    add(project, SECOND, proof("fail"))
    lines = run(project, "matrix").splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["IMAGE", "A", "B"],
        ["small:2", "fail", "-"],
        ["small:1", "-", "-"],
    ]
    assert [line.split() for line in lines[4:6]] == [["A", MODEL], ["B", OTHER]]
    assert lines[-2] == "of 4 pairs: 1 failed (fail), 3 never tried (-)"
    assert lines[-1] == "to prove a missing or stale pair: `builder prove IMAGE:N MODEL`"
    add(project, SECOND, bench(name="quick"))
    lines = run(project, "matrix").splitlines()
    assert lines[2].split()[:2] == ["bench", "quick"]
    assert "of 4 pairs with 2 proofs each: " in lines[-2]


def failed(model: str) -> JudgedRun:
    run = proof("fail", accepted="", file="a.json")
    return JudgedRun(replace(run, subject=replace(run.subject, model=model)), ())


@pytest.mark.parametrize(("images", "models", "most"), [(5, 3, 14), (20, 10, 36), (2, 30, 44)])
def test_the_table_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], images: int, models: int, most: int
) -> None:
    monkeypatch.setattr(output, "width", lambda *_: 80)
    names = [ImageName("vllm-node-tf5", number) for number in range(images, 0, -1)]
    called = [f"Organisation/Model-{number}B-FP8" for number in range(models)]
    evidence = {name: ImageEvidence(last=tuple(map(failed, called))) for name in names if images == 2}
    evidence_cli.print_matrix(standing.build_matrix(names, called, evidence))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) <= most
    assert max(map(len, printed)) <= 80


def test_what_is_unknown_is_a_mistake_of_the_command(project: Project) -> None:
    assert "neither a recipe nor a model" in run(project, "matrix", "--models", "Org/Modell-1B", code=2)
    assert "no number 9" in run(project, "matrix", "--images", "small:9", code=2)


# ``builder report``: the page of a project, from its files alone.


@pytest.fixture
def report_project(tmp_path: Path) -> Project:
    return stocked.fill(stocked.make(tmp_path))


def report_run(project: Project, *arguments: str, code: int = 0) -> str:
    done = program.run(
        [sys.executable, "-m", "builder", *arguments],
        cwd=project.root,
        env={**os.environ, "DOCKER_HOST": "unix:///nowhere", "PYTHONPATH": str(projects.REPOSITORY_ROOT)},
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def report_document(project: Project, *arguments: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(report_run(project, *arguments, "--json"))
    return content


@pytest.mark.slow
def test_it_needs_no_engine_and_says_where_the_page_is(report_project: Project) -> None:
    assert report_run(report_project, "report") == "report.html\n"
    assert (report_project.root / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_another_clone_gets_the_same_bytes(report_project: Project, tmp_path: Path) -> None:
    report_run(report_project, "report", "--output", "a/page.html")
    clone = type(report_project)(tmp_path / "elsewhere")
    shutil.copytree(report_project.root, clone.root, ignore=shutil.ignore_patterns(".builder", "a", "elsewhere"))
    report_run(clone, "report", "--output", "page.html")
    assert (clone.root / "page.html").read_bytes() == (report_project.root / "a/page.html").read_bytes()


@pytest.mark.slow
def test_the_figures_are_those_of_list_and_show(report_project: Project) -> None:
    report_run(report_project, "report", "--publish", "--full", "--output", "site")
    page = json.loads((report_project.root / "site/report.json").read_text())
    shown = {row["image"]: row for row in report_document(report_project, "list")["images"]}
    assert {row["image"] for row in page["images"]} == set(shown)
    for row in page["images"]:
        for key in ("status", "note", "built", "size", "platform", "models", "current", "pinned"):
            assert row[key] == shown[row["image"]][key], key
    (model,) = [each for each in page["models"] if each["model"] == MODEL]
    compared = 0
    for step in model["history"]:
        runs = {run["file"]: run for run in report_document(report_project, "show", step["image"])["evidence"]["runs"]}
        for row in step["runs"]:
            recorded = runs[row["run"]]
            assert row["verdict"] == recorded["verdict"]
            for mine, theirs in zip(row["figures"], recorded.get("figures", []), strict=True):
                assert all(mine[key] == theirs[key] for key in ("name", "at", "unit", "mean", "std", "n"))
                compared += 1
    assert compared == 16
    means = re.findall(r'<data value="([^"]+)">', (report_project.root / "site/index.html").read_text())
    (now,) = [step for step in model["history"] if step["is_now"]]
    assert {float(mean) for mean in means} == {figure["mean"] for run in now["runs"] for figure in run["figures"]}


@pytest.mark.slow
def test_standings_are_those_of_the_list(report_project: Project) -> None:
    report_run(report_project, "report", "--publish")
    page = json.loads((report_project.root / "report/report.json").read_text())
    for row in report_document(report_project, "list")["images"]:
        standings = {each["model"]: each["standing"] for each in row["evidence"]["pairings"]}
        for model in page["models"]:
            for step in model["history"]:
                if step["image"] == row["image"]:
                    assert step["standing"] == standings[model["model"]]


@pytest.mark.slow
def test_a_damaged_run_is_told_and_not_counted(report_project: Project) -> None:
    file = next((report_project.evidence / "small/2").glob("*-prove-*"))
    file.write_text(file.read_text().replace("pass", "fail"))
    report_run(report_project, "report")
    assert "not counted: a run that cannot be read<" in (report_project.root / "report.html").read_text()
    report_run(report_project, "report", "--full")
    text = (report_project.root / "report.html").read_text()
    assert "not counted" in text
    assert "it was changed or renamed after it was written" in text


@pytest.mark.slow
def test_a_lost_lock_is_no_empty_page(report_project: Project) -> None:
    projects.write(report_project.builds / "small/1/bake.json", "{}")
    report_project.lock.unlink()
    assert "lost" in report_run(report_project, "report", code=4)
    assert not (report_project.root / "report.html").exists()


@pytest.mark.slow
def test_file_and_folder_are_not_mixed_up(report_project: Project) -> None:
    assert "is a folder" in report_run(report_project, "report", "--output", "recipes", code=1)
    assert "is a file" in report_run(report_project, "report", "--publish", "--output", "images.lock", code=1)
