from __future__ import annotations

from pathlib import Path

import pytest

from builder.definitions import recipe, target
from builder.errors import FileProblemsError, UsageError
from builder.project import Project
from tests import projects


def test_a_recipe_of_the_community_loads_unchanged(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(
        tmp_path / "recipes/shared.yaml",
        """\
# Recipe as people share it
recipe_version: "1"
name: Qwen3.5-122B
description: vLLM serving Qwen3.5-122B
model: Intel/Qwen3.5-122B-A10B-int4-AutoRound
solo_only: true
container: small
build_args:
  - --tf5
mods:
  - mods/template
defaults:
  port: 8000
  max-num-seqs: 16
  speculative_config: '{"method": "mtp", "num_speculative_tokens": 3}'
env:
  VLLM_MARLIN_USE_ATOMIC_ADD: 1
command: |
  vllm serve Intel/Qwen3.5-122B-A10B-int4-AutoRound \\
  --max-num-seqs {max-num-seqs}

#  --language-model-only
""",
    )
    found = recipe.load(project, tmp_path / "recipes/shared.yaml")
    assert found.file == "recipes/shared.yaml"
    assert found.model == "Intel/Qwen3.5-122B-A10B-int4-AutoRound"
    assert found.mods == ("mods/template",)
    assert found.ignored_build_args == ("--tf5",)
    assert found.defaults["max-num-seqs"] == 16


def test_lists_and_mappings_may_be_empty(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(tmp_path / "recipes/r.yaml", "name: x\ncontainer: small\ncommand: vllm serve x\nmods:\nenv:\n")
    assert recipe.load(project, tmp_path / "recipes/r.yaml").mods == ()


def test_lost_indentation_is_named_with_what_is_missing(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    text = "name: x\ncontainer: small\ndefaults:\nport: 8000\nhost: 0.0.0.0\ncommand: vllm serve x\n"
    projects.write(tmp_path / "recipes/r.yaml", text)
    with pytest.raises(FileProblemsError) as caught:
        recipe.load(project, tmp_path / "recipes/r.yaml")
    assert [line.partition(";")[0] for line in str(caught.value).splitlines()] == [
        "recipes/r.yaml:4:1: unknown key `port`",
        "recipes/r.yaml:5:1: unknown key `host`",
    ]


@pytest.mark.parametrize("name", ["small", "chat", "recipes/chat.yaml"])
def test_a_target_is_a_definition_or_a_recipe(tmp_path: Path, name: str) -> None:
    found = target.find(projects.make(tmp_path), name)
    assert found.definition == "small"
    assert (found.recipe is None) == (name == "small")


def test_a_target_may_be_a_repository(tmp_path: Path) -> None:
    assert target.find(projects.make(tmp_path, "vllm-node-small"), "vllm-node-small").definition == "small"


def test_an_unknown_target_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        target.find(projects.make(tmp_path), "recipes/chatt.yaml")
    assert caught.value.hint == "did you mean chat?"


def test_a_recipe_for_an_unknown_image_is_refused(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.add_recipe(tmp_path, "other", "vllm-node-none", "Org/M", [])
    with pytest.raises(FileProblemsError, match=r"recipes/other\.yaml:1:1: container: no image definition makes"):
        target.find(project, "other")


def test_the_shipped_recipes_load() -> None:
    project = Project(projects.REPOSITORY_ROOT)
    for name in recipe.names(project):
        assert target.find(project, name).recipe is not None
    assert recipe.names(project)
