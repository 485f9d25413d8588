"""``builder matrix``: from the files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.evidence import store, subjects
from builder.lock import lock_file, text
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from tests import projects
from tests.evidence.runs import COMMIT, MODEL, bench, proof

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project
    from builder.evidence.records import Evidence


pytestmark = pytest.mark.slow
OTHER = "Org/Other-8B"
FIRST, SECOND = ImageName("small", 1), ImageName("small", 2)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two numbers and two models."""
    made = projects.make(tmp_path)
    lock = Lock()
    for name in (FIRST, SECOND):
        image = NumberedImage("2026-11-20T22:00:00Z", "small", "linux/amd64", f"sha256:{name.number:064x}", "h", 1)
        lock = lock.with_image(name, image).with_pairing(MODEL, Pairing(name, "recipes/chat.yaml", COMMIT))
    lock = lock.with_pairing(OTHER, Pairing(SECOND))
    projects.write(made.lock, text.dump_lock(lock.with_repository("small", lock.images["small"].with_current(2))))
    return made


def add(project: Project, name: ImageName, evidence: Evidence) -> str:
    subject = subjects.present_subject(project, lock_file.read_lock(project.lock), name, MODEL, evidence.kind)
    return project.relative(store.add_run(project, name, replace(evidence, subject=subject)))


def run(project: Project, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "builder", *arguments],
        capture_output=True,
        text=True,
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
    add(project, SECOND, bench(foreign="", accepted=""))
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
        "others": None,
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


def test_the_table_has_words_while_they_fit(project: Project) -> None:
    add(project, SECOND, proof("fail"))
    lines = run(project, "matrix").splitlines()
    assert lines[0].split() == ["IMAGE", "PROOF", MODEL, OTHER]
    assert lines[1].split() == ["small:2", "prove", "failed", "-"]
    assert lines[-2] == "of 4 pairs: 1 failed, 3 never tried"
    assert lines[-1] == f"to prove the first that is missing or stale: `builder prove small:2 {OTHER}`"
    add(project, SECOND, bench(name="quick", foreign=""))
    assert "of 4 pairs with 2 proofs each: " in run(project, "matrix").splitlines()[-2]


def test_what_is_unknown_is_a_mistake_of_the_command(project: Project) -> None:
    assert "no model" in run(project, "matrix", "--models", "Org/Modell-1B", code=2)
    assert "no number 9" in run(project, "matrix", "--images", "small:9", code=2)
