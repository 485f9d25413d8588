"""Several models behind one port: the configuration of a router for all that are paired."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml

from builder.commands import export
from builder.commands.export import ExportRequest
from builder.errors import UsageError
from builder.lock import reading
from builder.lock.model import ImageName, Model, Pairing
from builder.lock.text import dump
from builder.project import Project
from tests import locks, projects

if TYPE_CHECKING:
    from pathlib import Path

NO_HOME = {"HOME": "/home/ann"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two models on numbers of one repository, and a third whose recipe is gone."""
    made = projects.make(tmp_path)
    projects.add_recipe(tmp_path, "other", "small", "Org/Model-2B", [])
    path = tmp_path / "recipes/other.yaml"
    path.write_text(path.read_text().replace("--port 8000", "--port 8001 --served-model-name two"))
    locks.write(made, (1, 2), 2, 2)
    lock = replace(reading.read(made.lock), models={})
    for model, recipe, number in (("Org/Model-1B", "chat", 2), ("Org/Model-2B", "other", 1), ("Org/Gone", "gone", 1)):
        pairing = Pairing(ImageName("small", number), f"recipes/{recipe}.yaml")
        lock = lock.with_model(model, Model(pairing))
    made.lock.write_text(dump(lock))
    return made


def test_llama_swap_starts_each_model_from_its_number(project: Project) -> None:
    exported = export.run(project, ExportRequest(None, "llama-swap", {}), NO_HOME)
    document = yaml.safe_load(exported.texts[0].text)
    assert sorted(document["models"]) == ["Org/Model-1B", "Org/Model-2B"]
    assert " small:2 " in document["models"]["Org/Model-1B"]["cmd"]
    assert " small:1 " in document["models"]["Org/Model-2B"]["cmd"]
    assert f"builder.serve.project={project.root}" in document["models"]["Org/Model-1B"]["cmd"]
    assert exported.image == "small:2, small:1"
    assert any(line.startswith("Org/Gone is left out") for line in exported.warnings)


def test_litellm_leads_to_each_server(project: Project) -> None:
    exported = export.run(project, ExportRequest(None, "litellm", {}, address="spark1"), NO_HOME)
    entries = yaml.safe_load(exported.texts[0].text)["model_list"]
    assert {each["model_name"]: each["litellm_params"]["api_base"] for each in entries} == {
        "Org/Model-1B": "http://spark1:8000/v1",
        "Org/Model-2B": "http://spark1:8001/v1",
        "two": "http://spark1:8001/v1",
    }


def test_one_model_alone_may_be_named(project: Project) -> None:
    exported = export.run(project, ExportRequest("other", "llama-swap", {"port": "9000"}), NO_HOME)
    (entry,) = yaml.safe_load(exported.texts[0].text)["models"].values()
    assert entry["proxy"] == "http://127.0.0.1:9000"
    with pytest.raises(UsageError, match="is gone"):
        export.run(project, ExportRequest("Org/Gone", "llama-swap", {}), NO_HOME)


def test_formats_of_one_model_want_its_name(project: Project) -> None:
    with pytest.raises(UsageError, match="is for one model"):
        export.run(project, ExportRequest(None, "compose", {}), NO_HOME)


def test_nothing_paired_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model that is paired"):
        export.run(projects.make(tmp_path), ExportRequest(None, "litellm", {}), NO_HOME)
