"""A model's tokenizer and config: fetched once, without the weights, and what stands in where they cannot be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.base.events import ignore
from builder.definitions import recipe as recipes
from builder.engine.client import Endpoint
from builder.lab.prove import front_end
from builder.numbers.workspace import Workspace
from tests import hub_server, projects, shipped_files

MODEL = "Org/Model-1B"
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "tokenizer.json": b'{"model": {}}',
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"w" * 5000,
    "model.safetensors.index.json": b"{}",
    "images/logo.json": b"{}",
}
OWN = {"config.json", "tokenizer.json", "chat_template.jinja"}


def workspace(root: Path, **environ: str) -> Workspace:
    project = projects.make(root)
    environment = {"HOME": str(root / "home"), "HF_HOME": str(root / "hf"), **environ}
    return Workspace(project, Endpoint("unix:///none", (), ""), environment, ignore)


def of(space: Workspace, model: str = MODEL, revision: str | None = None, volumes: str = "") -> front_end.ModelFiles:
    file = space.project.recipes / "chat.yaml"
    if volumes:
        projects.write(file, file.read_text(encoding="utf-8") + f"volumes: ['{volumes}']\n")
    return front_end.model_files_of(space, recipes.load_recipe(space.project, file), model, revision)


@pytest.mark.slow
def test_they_are_fetched_once_and_without_weights(tmp_path: Path) -> None:
    with hub_server.serve() as hub:
        commit = hub.add(MODEL, FILES)
        space = workspace(tmp_path, HF_ENDPOINT=hub.url)
        first = of(space)
        assert (set(first.files), first.commit, first.stand_in) == (OWN, commit, "")
        assert hub.got("model.safetensors") == []
        requests = len(hub.requests)
        assert of(space, revision=commit) == first
        assert len(hub.requests) == requests
        assert of(space) == first
        assert len(hub.got("tokenizer.json")) == 1
    assert of(space) == first
    # A model without weights there would look downloaded.
    assert not (tmp_path / "hf").exists()


def test_a_model_in_the_cache_is_asked_for_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "hf/hub/models--Org--Model-1B"
    for name, content in FILES.items():
        projects.write(folder / "snapshots" / ("a" * 40) / name, content.decode())
    projects.write(folder / "refs/main", "a" * 40)
    got = of(workspace(tmp_path, HF_ENDPOINT="http://127.0.0.1:1"))
    assert (set(got.files), got.commit, got.stand_in) == (OWN, "a" * 40, "")


@pytest.mark.slow
def test_the_revision_decides(tmp_path: Path) -> None:
    with hub_server.serve() as hub:
        old = hub.add(MODEL, FILES)
        hub.add(MODEL, {**FILES, "tokenizer.json": b'{"model": {"newer": 1}}'})
        space = workspace(tmp_path, HF_ENDPOINT=hub.url)
        one, other = of(space, revision=old), of(space)
    assert one.commit == old
    assert one.digest != other.digest


@pytest.mark.parametrize(
    ("files", "reason"),
    [({"model.gguf": b"w"}, "no tokenizer files"), ({"config.json": b"{}"}, "lacks a tokenizer or config.json")],
)
def test_a_model_without_a_tokenizer_has_a_stand_in(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    with hub_server.serve() as hub:
        hub.add(MODEL, files)
        got = of(workspace(tmp_path, HF_ENDPOINT=hub.url))
    assert reason in got.stand_in
    assert got.files == front_end.files()


def test_without_a_hub_it_says_that_another_one_stands_in(tmp_path: Path) -> None:
    got = of(workspace(tmp_path, HF_ENDPOINT="http://127.0.0.1:1"))
    assert "http://127.0.0.1:1 does not answer" in got.stand_in
    assert got.commit is None


def test_a_folder_that_the_recipe_mounts_is_read_on_this_machine(tmp_path: Path) -> None:
    for name, content in FILES.items():
        projects.write(tmp_path / "models/own" / name, content.decode())
    space = workspace(tmp_path / "project")
    got = of(space, "/models/own", volumes=f"{tmp_path / 'models'}:/models")
    assert (set(got.files), got.stand_in) == (OWN, "")
    assert "not a model on the hub" in of(space, "/elsewhere/own").stand_in


def test_the_stand_in_has_one_token_for_each_byte_and_mark() -> None:
    content = json.loads(front_end.files()["tokenizer.json"])
    assert sorted(content["model"]["vocab"].values()) == list(range(256))
    assert len({token["id"] for token in content["added_tokens"]} | set(range(256))) == 256 + len(
        content["added_tokens"]
    )


def test_the_stand_in_takes_the_context_of_every_shipped_recipe() -> None:
    config = json.loads(front_end.files()["config.json"])
    asked = [each.defaults["max_model_len"] for _, each in recipes.readable_recipes(shipped_files.project())]
    assert len(asked) > 5
    assert all(isinstance(length, int) and length <= config["max_position_embeddings"] for length in asked)
