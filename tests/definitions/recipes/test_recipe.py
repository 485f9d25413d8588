from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.definitions import recipe
from tests import projects, shipped_files
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path


def test_a_recipe_of_the_community_loads_unchanged(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(
        tmp_path / "recipes/shared.yaml",
        """\
# Recipe as users share it
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
    loaded = recipe.load_recipe(project, tmp_path / "recipes/shared.yaml")
    assert loaded.file == "recipes/shared.yaml"
    assert loaded.model == "Intel/Qwen3.5-122B-A10B-int4-AutoRound"
    assert loaded.mods == ("mods/template",)
    assert loaded.ignored_build_args == ("--tf5",)
    assert loaded.defaults["max-num-seqs"] == 16


def test_every_shipped_recipe_says_what_of_it_was_seen() -> None:
    for name, shipped in recipe.readable_recipes(shipped_files.project()):
        text = " ".join(line.lstrip("# ") for line in shipped.text.splitlines() if line.startswith("#"))
        assert ("Seen here: " in text, "Not seen here: " in text) == (True, True), name


def test_lists_and_mappings_may_be_empty(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(tmp_path / "recipes/r.yaml", "name: x\ncontainer: small\ncommand: vllm serve x\nmods:\nenv:\n")
    assert recipe.load_recipe(project, tmp_path / "recipes/r.yaml").mods == ()


@pytest.mark.parametrize(
    "model", ["Org/M", "m", "unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "unsloth/Qwen3-0.6B-GGUF:UD-Q4_K_XL"]
)
def test_what_a_model_is_called(tmp_path: Path, model: str) -> None:
    loaded = recipe_texts.read(tmp_path, f"name: x\nmodel: {model}\ncontainer: small\ncommand: vllm serve {model}\n")
    assert loaded.recipe is not None
    assert loaded.recipe.model == model


@pytest.mark.parametrize("model", ["Org/M:7", "Org/M:", "Org/M:Q4:Q5", "Org/M:../Q4", "m:latest", "Org/M:Q4/x"])
def test_what_no_model_is_called(tmp_path: Path, model: str) -> None:
    loaded = recipe_texts.read(tmp_path, f"name: x\nmodel: {model}\ncontainer: small\ncommand: vllm serve x\n")
    assert [problem.location.line for problem in loaded.problems] == [2]


def test_every_key_is_read(tmp_path: Path) -> None:
    text = (
        "recipe_version: 1\nname: x\ndescription: d\nmodel: Org/M\nmodel_revision: abc\ndraft_model: Org/D\n"
        "container: small\nbuild_args: [--a, 1]\nmods: [mods/m]\ndefaults: {a: 1, b: 0.5, c: true, d: }\n"
        "env: {E: 1}\nvolumes: ['~/models:/models:ro', /a b:/c]\ncommand: x\ncluster: ray\nsolo_only: false\n"
        "cluster_only: true\n"
    )
    loaded = recipe_texts.read(tmp_path, text).recipe
    assert loaded is not None
    assert (loaded.name, loaded.description, loaded.model, loaded.revision) == ("x", "d", "Org/M", "abc")
    assert (loaded.draft_model, loaded.container, loaded.ignored_build_args) == ("Org/D", "small", ("--a", "1"))
    assert (loaded.mods, loaded.defaults) == (("mods/m",), {"a": 1, "b": 0.5, "c": True, "d": None})
    assert (loaded.env, loaded.command, loaded.solo_only, loaded.cluster_only) == ({"E": 1}, "x", False, True)
    assert (loaded.volumes, loaded.cluster) == (("~/models:/models:ro", "/a b:/c"), "ray")
    assert str(loaded.location("defaults", "c")) == "r.yaml:10:26"


@pytest.mark.parametrize(
    ("container", "repository", "number"),
    [("small", "small", None), ("small:7", "small", 7), ("host:5000/small", "host:5000/small", None)],
)
def test_a_container_may_be_a_number(tmp_path: Path, container: str, repository: str, number: int | None) -> None:
    loaded = recipe_texts.read(tmp_path, f"name: x\ncontainer: {container}\ncommand: x\n").recipe
    assert loaded is not None
    assert (loaded.repository, loaded.number) == (repository, number)


@pytest.mark.parametrize(
    "container",
    ["nvcr.io/nvidia/vllm:26.01-py3", "ghcr.io/o/i_n__a-b:V1@sha256:" + "a" * 64, "[::1]:5000/a/b", "localhost:5000/x"],
)
def test_a_container_may_be_any_image(tmp_path: Path, container: str) -> None:
    assert recipe_texts.problem_lines(tmp_path, f"name: x\ncontainer: '{container}'\ncommand: x\n") == []


@pytest.mark.parametrize(
    "container",
    ["--privileged", "a\\nb", "a b", "a:", "a@sha256:1", "$(id)", "a;id", "a/../b", "A/B/C", "a:b:c", "a\\u2028b"],
)
def test_a_container_that_docker_could_not_name_is_refused(tmp_path: Path, container: str) -> None:
    (line,) = recipe_texts.problem_lines(tmp_path, f'name: x\ncontainer: "{container}"\ncommand: x\n')
    assert "has characters that are not allowed here; meant is: the repository" in line


PASTED = """\
name: Model
container: small
mods:

  • mods/template

defaults:
port: 8000
max-seqs: 1
env:
HF_HUB_OFFLINE: 1
command: |
vllm serve Org/M
\u2013port {port}
\u2013speculative-config \u2018{{“n”: 1}}\u2019
\u2013max-num-seqs {max-seqs}
recipe_version: \u20181\u2019
solo: true
"""


def test_a_pasted_recipe_gives_one_problem(tmp_path: Path) -> None:
    (problem,) = recipe_texts.problem_lines(tmp_path, PASTED)
    assert (
        problem == "r.yaml:5:3: this recipe was pasted from a page: `builder recipes add --mend r.yaml` corrects that"
    )


def test_a_recipe_with_problems_does_not_load(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(tmp_path / "recipes/r.yaml", "name: x\ncontainer: small\ndefaults:\nport: 1\ncommand: x {port}\n")
    with pytest.raises(FileProblemsError, match=r"r\.yaml:4:1: this recipe was pasted from a page"):
        recipe.load_recipe(project, tmp_path / "recipes/r.yaml")


def test_text_that_is_no_recipe_at_all(tmp_path: Path) -> None:
    assert recipe_texts.problem_lines(tmp_path, "just text\n") == [
        'r.yaml:1:1: "just text" is not a mapping (`key: value` lines)'
    ]
    (problem,) = recipe_texts.problem_lines(tmp_path, "name: [\n")
    assert problem.startswith("r.yaml:2:1: ")


@pytest.mark.parametrize("volume", ["models", "~/models:models", ":/models", "~/models:/models:rx", "a:/b:ro:/c"])
def test_a_volume_that_is_none(tmp_path: Path, volume: str) -> None:
    (problem,) = recipe_texts.problem_lines(tmp_path, f"name: x\ncontainer: c\nvolumes: ['{volume}']\ncommand: x\n")
    assert problem.startswith("r.yaml:3:11: `volumes.0`: ")
    assert "SRC:DST or SRC:DST:ro" in problem


@pytest.mark.parametrize("cluster", ["mpi", "no", "[ray]"])
def test_what_joins_several_machines_is_ray_or_nothing(tmp_path: Path, cluster: str) -> None:
    (problem,) = recipe_texts.problem_lines(tmp_path, f"name: x\ncontainer: c\ncluster: {cluster}\ncommand: x\n")
    assert problem.startswith("r.yaml:3:1: `cluster`: ")


def test_a_name_that_no_variable_can_have(tmp_path: Path) -> None:
    (problem,) = recipe_texts.problem_lines(tmp_path, "name: x\ncontainer: c\ncommand: x\nenv:\n  A: 1\n  b-c: 1\n")
    assert problem == "r.yaml:6:3: `b-c` has characters that are not allowed in a name here"
