"""Marks without an engine; what they change elsewhere is tested with the pairings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lock import lock_file
from builder.lock.model import ImageName, Pairing
from tests import locks, projects
from tests.conftest import WITHOUT_ENGINE, run_command

if TYPE_CHECKING:
    from pathlib import Path


def test_a_mark_is_recorded(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1, 2), current=2, paired=2)
    run_command(project, "mark", "small:2", "bad", "--note", "loops", environ=WITHOUT_ENGINE)
    assert lock_file.read_lock(project.lock).images["small"].numbers[2].status == "bad"
    assert "no number 9" in run_command(project, "mark", "small:9", "bad", code=2, environ=WITHOUT_ENGINE).stderr


def test_a_bad_image_without_an_earlier_one_gets_no_advice_to_go_back(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1, 2), current=2, paired=2)
    stuck = "still points to this image; no earlier image fits; `builder list` shows all images"
    for what in (locks.MODEL, "small:2"):
        said = run_command(project, "mark", what, "bad", environ=WITHOUT_ENGINE).stdout
        assert f"  {locks.MODEL} {stuck}\n" in said
        assert "rollback" not in said
    assert f"  small {stuck}\n" in said
    run_command(project, "mark", "small:2", "unmarked", environ=WITHOUT_ENGINE)

    lock = lock_file.read_lock(project.lock)
    locks.write_lock(project.root, lock.with_repository("small", lock.images["small"].with_current(1)))
    said = run_command(project, "mark", "small:1", "bad", environ=WITHOUT_ENGINE).stdout
    assert "  small still points to this image; to go back: `builder rollback small`\n" in said


def test_a_hint_quotes_a_model_that_is_a_path_with_a_space(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1, 2), current=2)
    model = "/models/My Model"
    lock = lock_file.read_lock(project.lock)
    for number in (1, 2):
        lock = lock.with_pairing(model, Pairing(ImageName("small", number), locks.RECIPE))
    locks.write_lock(project.root, lock)
    said = run_command(project, "mark", model, "bad", environ=WITHOUT_ENGINE).stdout
    assert f"  {model} still points to this image; to go back: `builder rollback '{model}'`\n" in said
