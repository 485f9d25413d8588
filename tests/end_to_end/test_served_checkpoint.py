"""A made checkpoint on the real cpu image: its weights are served, and go back with the pairing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base import processes
from builder.base.project import Project
from builder.definitions.container import LABEL
from builder.engine import containers
from builder.engine.client import Endpoint
from builder.lock import lock_file
from tests import projects, shared
from tests.conftest import remove_all, run_command
from tests.cpu_image import builder, project, run_in
from tests.end_to_end.test_serving import MOD, RECIPE, TEMPLATE, chat

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
MODEL = "Org/Mixed"
DEFINITION = """\
description: one tiny model with a layer of another
model: Org/Mixed
sources:
  first: {{folder: {folder}/first}}
  second: {{folder: {folder}/second}}
steps:
  - take: first
  - replace: second
    select: ["model.layers.{layer}.*"]
    expect: 11
  - verify: {{dtypes: {{BF16: 24}}}}
"""


@pytest.fixture
def cpu(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The shipped project with a recipe that serves the checkpoint."""
    repository = f"{shared.unique_name()}-cpu"
    made = project(tmp_path / "project", repository, RECIPE)
    text = projects.replaced(
        (made.root / RECIPE).read_text(encoding="utf-8"),
        ("Qwen3-0.6B-cpu", f"{repository}-served"),
        ("model: Qwen/Qwen3-0.6B", "model: checkpoint:mixed"),
        ("vllm serve Qwen/Qwen3-0.6B", "vllm serve {model} --enforce-eager"),
        ("max_model_len: 8192", "max_model_len: 4096"),
        ("port: 8000", f"port: {processes.free_port()}"),
    )
    projects.write(made.root / "recipes/mixed.yaml", text)
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    yield made
    containers.remove_labelled(endpoint, f"{LABEL}={repository}-served")
    remove_all(endpoint, repository)


def make(cpu: Project, folder: Path, layer: int) -> None:
    definition = DEFINITION.format(folder=folder, layer=layer)
    projects.write(cpu.root / "checkpoints/mixed/checkpoint.yaml", definition)
    builder(cpu, "checkpoints", "build", "mixed")


def served_answer(cpu: Project) -> str:
    port = processes.free_port()
    builder(cpu, "run", MODEL, "--port", str(port))
    said = chat(port)
    builder(cpu, "stop", MODEL)
    return said


def compare(cpu: Project, folder: Path) -> None:
    """The checkpoint against its source, of which it has all layers but one; the models are random ones."""
    said = run_command(cpu, "checkpoints", "compare", MODEL, "--within", "50", "--json", timeout=1200).stdout
    compared = json.loads(said)
    assert (compared["verdict"], compared["passed"]) == ("different", True)
    assert compared["first"] == f"folder: {folder}/first"
    assert 0 < abs(compared["perplexity_change"]) < 0.5
    # Of two random models with one common embedding, few places differ: on some processors only at one of the depths.
    shares = [each["same_next_token"] for each in compared["texts"] if each["kind"] == "all"]
    assert 0 < min(shares) < 1
    assert max(shares) <= 1
    kept = json.loads(Path(compared["file"]).read_text(encoding="utf-8"))
    assert kept["sampling"]["reference"] == f"folder: {folder}/first"
    assert kept["subject"]["model"] == MODEL
    assert kept["subject"]["revision"] == lock_file.read_lock(cpu.lock).models[MODEL].pairing.revision
    # Other tests serve models of theirs on this engine.
    served = json.loads(builder(cpu, "status", "--json"))["services"]
    assert MODEL not in {service["model"] for service in served}


@pytest.mark.long
def test_weights_are_served_and_go_back_with_their_pairing(cpu: Project, endpoint: Endpoint, tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    image = builder(cpu, "build", RECIPE, "--no-prove").split()[1]
    argv = ["python3", "/here/tiny_model.py", "/models/first", "/models/second"]
    run_in(endpoint, image, argv, {HERE: "/here", folder: "/models"})

    make(cpu, folder, layer=0)
    builder(cpu, "build", "recipes/mixed.yaml")
    one = served_answer(cpu)
    compare(cpu, folder)
    first = lock_file.read_lock(cpu.lock).models[MODEL].pairing
    assert str(first.image) == image
    make(cpu, folder, layer=1)
    assert served_answer(cpu) == one  # a model stays on the weights that it is paired with

    said = builder(cpu, "pair", MODEL, image, "--checkpoint", "mixed")
    assert f"back: `builder pair {MODEL} {image} --checkpoint mixed@" in said
    builder(cpu, "pair", MODEL, image, "--checkpoint", first.revision or "")

    template = cpu.mods / MOD / TEMPLATE
    projects.write(template, "{#- changed -#}\n" + template.read_text(encoding="utf-8"))
    builder(cpu, "build", "recipes/mixed.yaml", "--no-prove")
    builder(cpu, "pair", MODEL, f"{first.image.repository}:2", "--checkpoint", "mixed")
    assert served_answer(cpu) != one
    builder(cpu, "rollback", MODEL)
    back = lock_file.read_lock(cpu.lock).models[MODEL].pairing
    assert replace(back, since=first.since) == first
    assert served_answer(cpu) == one
