"""A fault of a template found on the real cpu image by proofs alone: no GPU, no weights, no server of a model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine.client import Endpoint
from tests import projects, shared
from tests.commands.bisect_trials import left_over
from tests.conftest import remove_all
from tests.cpu_image import builder, project
from tests.end_to_end.test_serving import MOD, MODEL, RECIPE, TEMPLATE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.timeout(1800)]

RIGHT, WRONG = r"\n</tool_response>", r"\n</tool_reply>"


@pytest.fixture
def cpu(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The shipped project; a tokenizer stands in for the model's, which is not fetched."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    repository = f"{shared.unique_name()}-cpu"
    yield project(tmp_path / "project", repository, RECIPE)
    remove_all(endpoint, repository)


@pytest.mark.long
def test_the_mod_of_a_template_is_named(cpu: Project, endpoint: Endpoint) -> None:
    builder(cpu, "build", RECIPE, "--no-prove")
    template = cpu.mods / MOD / TEMPLATE
    text = template.read_text(encoding="utf-8")
    assert text.count(RIGHT) == 1
    projects.write(template, text.replace(RIGHT, WRONG))
    builder(cpu, "build", RECIPE, "--no-prove")

    found = json.loads(builder(cpu, "bisect", MODEL, "--good", "1", "--prove", "--json"))
    (culprit,) = found["culprits"]
    assert (found["result"], found["joint"]) == ("found", False)
    assert culprit["axis"] == f"mod {MOD}"
    assert WRONG in culprit["change"]
    assert left_over(endpoint, cpu) == []
