from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.definitions import target
from builder.definitions.recipes import finding
from builder.errors import FileProblemsError, UsageError
from tests import projects, shipped_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["small", "chat", "recipes/chat.yaml"])
def test_a_target_is_a_definition_or_a_recipe(tmp_path: Path, name: str) -> None:
    chosen = target.find(projects.make(tmp_path), name)
    assert chosen.definition == "small"
    assert (chosen.recipe is None) == (name == "small")


def test_a_target_may_be_a_repository(tmp_path: Path) -> None:
    assert target.find(projects.make(tmp_path, "vllm-node-small"), "vllm-node-small").definition == "small"


def test_an_unknown_target_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        target.find(projects.make(tmp_path), "recipes/chatt.yaml")
    assert caught.value.hint == "did you mean chat?"


def test_a_recipe_is_found_beside_a_definition_of_its_name(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.recipes / "small.yaml", (project.recipes / "chat.yaml").read_text())
    assert target.find(project, "small").recipe is None
    assert target.find_recipe(project, "small").file == "recipes/small.yaml"


def test_a_recipe_for_an_image_of_others_has_no_definition_and_is_told_the_other_ways(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.add_recipe(tmp_path, "other", "host/vllm:v1", "Org/M", [])
    named = target.find(project, "other")
    assert named.definition is None
    with pytest.raises(FileProblemsError, match=r"recipes/other\.yaml:4:1: container: no image definition") as caught:
        target.definition_of(project, named)
    for way in ("`builder adopt host/vllm:v1`", "`base: host/vllm:v1`", "a container that is made here"):
        assert way in caught.value.hint


def test_the_shipped_recipes_load() -> None:
    project = shipped_files.project()
    for name in finding.names(project):
        assert target.find(project, name).recipe is not None
    assert finding.names(project)
