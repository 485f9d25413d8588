from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder import project
from builder.errors import UsageError
from builder.project import Project

if TYPE_CHECKING:
    from pathlib import Path


def test_a_project_is_found_from_any_folder_in_it(tmp_path: Path) -> None:
    (tmp_path / "dockerfiles").mkdir()
    deep = tmp_path / "mods/one"
    deep.mkdir(parents=True)
    assert project.find(deep) == project.find(tmp_path) == Project(tmp_path)


def test_the_nearest_project_counts(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    for folder in (tmp_path, inner):
        (folder / "dockerfiles").mkdir(parents=True)
    assert project.find(inner / "dockerfiles") == Project(inner)


def test_outside_of_a_project_it_is_said_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no project here") as caught:
        project.find(tmp_path)
    assert "builder --project FOLDER" in (caught.value.hint or "")


def test_a_path_is_told_from_the_folder_of_the_project(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert project.relative(tmp_path / "mods/../recipes/a.yaml") == "recipes/a.yaml"
    assert project.relative(tmp_path.parent / "a.yaml") == str(tmp_path.parent / "a.yaml")


@pytest.mark.parametrize("folder", ["journal", "work"])
def test_what_a_killed_process_left_is_unfinished(tmp_path: Path, folder: str) -> None:
    project = Project(tmp_path)
    assert not project.unfinished
    place = project.state / folder
    place.mkdir(parents=True)
    assert not project.unfinished
    (place / "small-1").touch()
    assert project.unfinished
