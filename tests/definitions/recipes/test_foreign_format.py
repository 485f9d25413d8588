from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path

SPARKRUN = """\
recipe_version: "2"
model: Org/M
runtime: sglang
min_nodes: 2
metadata:
  description: d
defaults:
  port: 30000
runtime_config:
  mods: [a]
"""


def test_a_recipe_of_sparkrun_is_one_problem(tmp_path: Path) -> None:
    assert recipe_texts.problem_lines(tmp_path, SPARKRUN) == [
        "r.yaml:1:1: this is a recipe of sparkrun, version 2; builder reads version 1, that of spark-vllm-docker"
    ]


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("recipe_version: 3\n", "1:1: this is a recipe of sparkrun, version 3;"),
        ("recipe_version: '4.0'\n", "1:1: this is a recipe of sparkrun, version 4;"),
        ("version: 2\n", "1:1: this is a recipe of sparkrun, version 2;"),
        ("recipe_version: '1'\nruntime: vllm-ray\n", "2:1: this is a recipe of sparkrun (runtime vllm-ray);"),
        ("runtime: {}\n", "1:1: this is a recipe of sparkrun;"),
        ("recipe_version: '1'\nbuilder: eugr\n", "2:1: this is a recipe of sparkrun;"),
    ],
)
def test_what_tells_it(tmp_path: Path, head: str, said: str) -> None:
    (problem,) = recipe_texts.problem_lines(tmp_path, f"{head}model: Org/M\ncommand: x\n")
    assert problem.startswith(f"r.yaml:{said}")


def test_a_recipe_of_version_1_may_have_its_keys(tmp_path: Path) -> None:
    text = "recipe_version: 1\nname: x\ncontainer: c\nruntime: vllm\nmetadata:\n  a: b\ncommand: x\nmin_nodes: 1\n"
    parsed = recipe_texts.read(tmp_path, text)
    assert (parsed.problems, parsed.recipe is None) == ((), False)
    assert [str(note) for note in parsed.notes] == [
        f"r.yaml:{line}:1: unknown key `{key}`; it is ignored"
        for line, key in ((4, "runtime"), (5, "metadata"), (8, "min_nodes"))
    ]


@pytest.mark.parametrize("version", ["'9'", "x", "1.5"])
def test_a_version_that_is_not_known_is_a_note(tmp_path: Path, version: str) -> None:
    parsed = recipe_texts.read(tmp_path, f"recipe_version: {version}\nname: x\ncontainer: c\ncommand: x\n")
    assert parsed.recipe is not None
    assert [note.location.line for note in parsed.notes] == ([] if version == "1.5" else [1])
