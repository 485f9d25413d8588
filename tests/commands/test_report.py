"""``builder report``: the page of a project, from its files alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from builder.evidence import matrix
from tests import projects
from tests.evidence.runs import MODEL
from tests.reporting import stocked

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project


pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return stocked.fill(stocked.make(tmp_path))


def run(project: Project, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "builder", *arguments],
        capture_output=True,
        text=True,
        cwd=project.root,
        env={**os.environ, "DOCKER_HOST": "unix:///nowhere", "PYTHONPATH": str(projects.REPOSITORY_ROOT)},
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def document(project: Project, *arguments: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(project, *arguments, "--json"))
    return content


def test_it_needs_no_engine_and_says_where_the_page_is(project: Project) -> None:
    assert run(project, "report") == "report.html\n"
    assert (project.root / "report.html").read_text().startswith("<!doctype html>")


def test_it_says_how_many_machines_made_the_same_content(project: Project) -> None:
    name = stocked.NAMES[1]
    fingerprint = stocked.image(name.number).fingerprint
    matrix.state_witness(project, name, fingerprint, "sha256:2", "linux/arm64", {}, None)
    run(project, "report")
    assert (project.root / "report.html").read_text().count("; 1 machine made the same content</p>") == 1


def test_another_clone_gets_the_same_bytes(project: Project, tmp_path: Path) -> None:
    run(project, "report", "--output", "a/page.html")
    clone = type(project)(tmp_path / "elsewhere")
    shutil.copytree(project.root, clone.root, ignore=shutil.ignore_patterns(".builder", "a", "elsewhere"))
    run(clone, "report", "--output", "page.html")
    assert (clone.root / "page.html").read_bytes() == (project.root / "a/page.html").read_bytes()


def test_the_figures_are_those_of_list_and_show(project: Project) -> None:
    run(project, "report", "--publish", "--full", "--output", "site")
    page = json.loads((project.root / "site/report.json").read_text())
    shown = {row["image"]: row for row in document(project, "list")["images"]}
    assert {row["image"] for row in page["images"]} == set(shown)
    for row in page["images"]:
        for key in ("status", "note", "built", "size", "platform", "models", "current", "pinned"):
            assert row[key] == shown[row["image"]][key], key
    (model,) = [each for each in page["models"] if each["model"] == MODEL]
    compared = 0
    for step in model["history"]:
        runs = {run["file"]: run for run in document(project, "show", step["image"])["evidence"]["runs"]}
        for row in step["runs"]:
            recorded = runs[row["run"]]
            assert row["verdict"] == recorded["verdict"]
            for mine, theirs in zip(row["figures"], recorded.get("figures", []), strict=True):
                assert all(mine[key] == theirs[key] for key in ("name", "at", "unit", "mean", "std", "n"))
                compared += 1
    assert compared == 16
    means = re.findall(r'<data value="([^"]+)">', (project.root / "site/index.html").read_text())
    (now,) = [step for step in model["history"] if step["is_now"]]
    assert {float(mean) for mean in means} == {figure["mean"] for run in now["runs"] for figure in run["figures"]}


def test_standings_are_those_of_the_list(project: Project) -> None:
    run(project, "report", "--publish")
    page = json.loads((project.root / "report/report.json").read_text())
    for row in document(project, "list")["images"]:
        standings = {each["model"]: each["standing"] for each in row["evidence"]["pairings"]}
        for model in page["models"]:
            for step in model["history"]:
                if step["image"] == row["image"]:
                    assert step["standing"] == standings[model["model"]]


def test_the_table_as_a_page(project: Project) -> None:
    text = run(project, "matrix", "--html", "--models", MODEL)
    assert text.startswith("<!doctype html>")
    assert stocked.OTHER not in text


def test_a_damaged_run_is_told_and_not_counted(project: Project) -> None:
    file = next((project.evidence / "small/2").glob("*-prove-*"))
    file.write_text(file.read_text().replace("pass", "fail"))
    run(project, "report")
    assert "not counted: a run that cannot be read<" in (project.root / "report.html").read_text()
    run(project, "report", "--full")
    text = (project.root / "report.html").read_text()
    assert "not counted" in text
    assert "it was changed after it was written" in text


def test_a_lost_lock_is_no_empty_page(project: Project) -> None:
    projects.write(project.builds / "small/1/bake.json", "{}")
    project.lock.unlink()
    assert "lost" in run(project, "report", code=4)
    assert not (project.root / "report.html").exists()


def test_file_and_folder_are_not_mixed_up(project: Project) -> None:
    assert "is a folder" in run(project, "report", "--output", "recipes", code=1)
    assert "is a file" in run(project, "report", "--publish", "--output", "images.lock", code=1)
