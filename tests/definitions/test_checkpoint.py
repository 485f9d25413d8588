"""Checkpoint definitions: what is wrong in one is said with its file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.base.project import Project
from builder.definitions import checkpoint_definition
from builder.definitions.checkpoint_definition import ConfigStep, ReplaceStep, TakeStep
from tests import projects

FILE = "checkpoints/hybrid/checkpoint.yaml"
TEXT = """\
description: a hybrid
model: Org/Model
sources:
  int4: {hf: Org/Model-int4@v1}
  local: {folder: ~/models/fp8}
requires: {mods: [enable-hybrid-int4fp8]}
steps:
  - take: int4
  - replace: local
    companions: [weight_scale_inv]
    expect: 144
    unmatched: 3
  - config: {bits: 8}
    file: config.json
output: {shard_size: 2 GB}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(FileProblemsError) as refused:
        checkpoint_definition.parse_checkpoint(text, "hybrid", FILE)
    return [str(problem).removeprefix(f"{FILE}:") for problem in refused.value.problems]


def test_a_definition_is_read() -> None:
    definition = checkpoint_definition.parse_checkpoint(TEXT, "hybrid", FILE)
    take, replace, config = definition.steps
    assert isinstance(take, TakeStep)
    assert isinstance(replace, ReplaceStep)
    assert isinstance(config, ConfigStep)
    assert (replace.expect, replace.unmatched, replace.companions) == (144, 3, ("weight_scale_inv",))
    assert (config.file, config.patch) == ("config.json", {"bits": 8})
    assert [str(source) for source in definition.sources.values()] == ["hf: Org/Model-int4@v1", "folder: ~/models/fp8"]
    assert (definition.mods, definition.shard_size) == (("enable-hybrid-int4fp8",), 2_000_000_000)
    assert str(definition.location("steps", 1, "expect")) == f"{FILE}:11:5"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("description: a hybrid\n", "", "1:1: the key `description` is missing"),
        ("take: int4", "take: int8", "8:5: `int8` is not one of the sources; did you mean `int4`?"),
        ("  - take: int4\n", "", "8:5: the first step must take a source: `take: SOURCE`"),
        ("expect: 144", "expct: 144", "11:5: unknown key `expct`; did you mean `expect`?"),
        ("expect: 144", "unless: [x]", "11:5: `unless` has no effect with `replace`"),
        (
            "expect: 144",
            "take: int4",
            "9:5: a step has exactly one of take, replace, add, config, verify; this step has",
        ),
        ("companions: [weight_scale_inv]", "companions: [a b]", "10:18: `steps.1.companions.0`"),
        ("config: {bits: 8}", "quantize: int4", "13:5: unknown key `quantize`"),
        ("@v1", "@../x", '4:10: `sources.int4.hf`: "Org/Model-int4@../x" does not have the expected form'),
        ("2 GB", "2 TB", "15:10: `output.shard_size`"),
        ("  local: {folder: ~/models/fp8}", "  local: {folder: ~/models/fp8}\n  x: {folder: /x}", "6:3: no step uses"),
    ],
)
def test_a_problem_is_said_with_its_place(old: str, new: str, problem: str) -> None:
    assert old in TEXT
    assert any(each.startswith(problem) for each in problems(TEXT.replace(old, new))), problems(TEXT.replace(old, new))


def test_an_added_file_is_one_of_weights() -> None:
    text = TEXT + "  # \n"
    text = TEXT.replace("output:", "  - {add: int4, file: extra.bin}\noutput:")
    assert problems(text) == ["15:5: `add` requires a `file`: the name of a .safetensors file in its source"]


def test_a_checkpoint_is_found_by_its_name(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.root / FILE, TEXT)
    assert checkpoint_definition.checkpoint_names(project) == ("hybrid",)
    for text in ("hybrid", "checkpoint:hybrid", "checkpoints/hybrid/"):
        assert checkpoint_definition.load_checkpoint(project, text).name == "hybrid"
    with pytest.raises(UsageError, match="no checkpoint is called `hybird`; did you mean `hybrid`"):
        checkpoint_definition.load_checkpoint(project, "hybird")


def test_a_project_without_checkpoints_tells_where_one_goes(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        checkpoint_definition.load_checkpoint(Project(tmp_path), "any")
    assert "checkpoints/NAME/checkpoint.yaml" in refused.value.hint
