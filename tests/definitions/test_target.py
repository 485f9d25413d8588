from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.definitions import build_target, recipe
from tests import projects, shipped_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["small", "chat", "recipes/chat.yaml"])
def test_a_target_is_a_definition_or_a_recipe(tmp_path: Path, name: str) -> None:
    chosen = build_target.find_target(projects.make(tmp_path), name)
    assert chosen.definition == "small"
    assert (chosen.recipe is None) == (name == "small")


def test_a_target_may_be_a_repository(tmp_path: Path) -> None:
    assert build_target.find_target(projects.make(tmp_path, "vllm-node-small"), "vllm-node-small").definition == "small"


def test_an_unknown_target_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        build_target.find_target(projects.make(tmp_path), "recipes/chatt.yaml")
    assert caught.value.hint == "did you mean chat?"


def test_a_recipe_is_found_beside_a_definition_of_its_name(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.recipes / "small.yaml", (project.recipes / "chat.yaml").read_text())
    assert build_target.find_target(project, "small").recipe is None
    assert build_target.find_recipe(project, "small").file == "recipes/small.yaml"


def test_a_recipe_for_an_image_of_others_has_no_definition_and_is_told_the_other_ways(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.add_recipe(tmp_path, "other", "host/vllm:v1", "Org/M", [])
    named = build_target.find_target(project, "other")
    assert named.definition is None
    with pytest.raises(FileProblemsError, match=r"recipes/other\.yaml:4:1: container: no image definition") as caught:
        build_target.definition_of(project, named)
    for way in (
        "`builder adopt host/vllm:v1`",
        "`base: host/vllm:v1`",
        "set `container` to the repository of its definition",
    ):
        assert way in caught.value.hint


def test_a_definition_that_cannot_be_read_may_be_the_one_that_builds_a_recipe(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.add_recipe(tmp_path, "other", "unreadable", "Org/M", [])
    projects.write(project.dockerfiles / "broken/image.yaml", "repository: [")
    assert build_target.definition_of(project, build_target.find_target(project, "chat")) == "small"
    named = build_target.find_target(project, "other")
    assert named.recipe
    with pytest.raises(FileProblemsError, match="dockerfiles/broken/image.yaml"):
        build_target.definition_of(project, named)


def test_the_shipped_recipes_load() -> None:
    project = shipped_files.project()
    for name in recipe.recipe_names(project):
        assert build_target.find_target(project, name).recipe is not None
    assert recipe.recipe_names(project)
