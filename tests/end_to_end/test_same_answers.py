"""The real cpu image compared with another one, and with itself under other arguments, weights and another recipe."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from tests.end_to_end.test_serving import MOD, MODEL, RECIPE, REVISION, TEMPLATE

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.timeout(2400)]

HERE = Path(__file__).parent
# The keys of every layer stand one position too far.
FAULT = """\
set -eu
cd "$(python3 -c 'import importlib.util as u; print(u.find_spec("vllm").submodule_search_locations[0])')"
file=model_executor/models/qwen3.py
grep -q 'q, k = self.rotary_emb(positions, q, k)' "$file"
sed -i 's/q, k = self.rotary_emb(positions, q, k)/(q, _), (_, k) = self.rotary_emb(positions, q.clone(), k.clone()), \\
self.rotary_emb(positions + 1, q.clone(), k.clone())/' "$file"
"""
FAULT = FAULT.replace("\\\n", "")
CHECKPOINT = f"""\
description: a layer whose scale is off
model: {MODEL}
sources:
  first: {{{{folder: {{folder}}/dense-none}}}}
  second: {{{{folder: {{folder}}/dense-scale=0.1}}}}
steps:
  - take: first
  - replace: second
    select: ["model.layers.1.mlp.*"]
    expect: 3
"""


@pytest.fixture
def cpu(tmp_path: Path, endpoint: Endpoint) -> Iterator[Project]:
    with built(tmp_path, endpoint) as made:
        yield made


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint) -> Iterator[Project]:
    """A project for tests that build nothing."""
    with built(tmp_path_factory.mktemp("unchanged"), endpoint) as made:
        yield made


@contextmanager
def built(folder: Path, endpoint: Endpoint) -> Iterator[Project]:
    """The shipped project with number 1, whose model is a small random one and has to answer as before to be moved."""
    repository = f"{shared.unique_name()}-cpu"
    made = project(folder / "project", repository, RECIPE)
    text = projects.replaced(
        (made.root / RECIPE).read_text(encoding="utf-8"),
        ("Qwen3-0.6B-cpu", f"{repository}-served"),
        ("--host {host}", "--host {host} --enforce-eager"),
        ("max_model_len: 8192", "max_model_len: 2048"),
        ("port: 8000", f"port: {processes.free_port()}"),
        ("\nenv:\n", "\nenv:\n  HF_HUB_OFFLINE: 1\n"),
    )
    projects.write(made.root / RECIPE, text)
    projects.write(made.root / "builder.yaml", 'requires: {same: "within 0.5 %"}\n')
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HOME", "XDG_CACHE_HOME"):
            patch.setenv(name, str(folder / name))
        try:
            put_model(endpoint, builder(made, "build", RECIPE, "--no-prove").split()[1], folder / "HF_HOME")
            yield made
        finally:
            containers.remove_labelled(endpoint, f"{LABEL}={repository}-served")
            remove_all(endpoint, repository)


def put_model(endpoint: Endpoint, image: str, home: Path) -> None:
    """Puts a small random model where a person has the recipe's."""
    model = home / f"hub/models--{MODEL.replace('/', '--')}"
    projects.write(model / "refs/main", REVISION)
    (model / "snapshots").mkdir()
    argv = ["python3", "/here/faulty_models.py", "/models", "dense", "none"]
    run_in(endpoint, image, argv, {HERE: "/here", model / "snapshots": "/models"})
    (model / "snapshots/dense-none").rename(model / "snapshots" / REVISION)


def compared(cpu: Project, *arguments: str, code: int = 0) -> Any:
    done = run_command(cpu, "compare", "--json", *arguments, code=code, timeout=1200)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def repository_of(cpu: Project) -> str:
    return lock_file.read_lock(cpu.lock).models[MODEL].pairing.image.repository


def paired(cpu: Project) -> int:
    return lock_file.read_lock(cpu.lock).models[MODEL].pairing.image.number


@pytest.mark.long
def test_a_fault_that_only_changes_numbers_holds_the_model_back(cpu: Project) -> None:
    template = cpu.mods / MOD / TEMPLATE
    projects.write(template, "{#- changed -#}\n" + template.read_text(encoding="utf-8"))
    repository = repository_of(cpu)
    said = builder(cpu, "build", RECIPE, "--no-prove")
    assert f"`builder compare {repository}:1 {repository}:2 {MODEL}`" in said
    assert paired(cpu) == 1
    alike = compared(cpu, "1", "2", MODEL)
    assert alike["verdict"] != "different"
    assert (alike["passed"], alike["within"], alike["prompts_differ"]) == (True, 0.005, [])
    assert alike["answers"] == {"asked": 100, "before": 0, "after": 0, "differ": False}
    builder(cpu, "pair", MODEL, f"{repository}:2")

    projects.write(cpu.mods / "turned/mod.yaml", "description: a fault\nrun: run.sh\nnetwork: false\n")
    projects.write(cpu.mods / "turned/run.sh", FAULT)
    recipe = cpu.root / RECIPE
    text = recipe.read_text(encoding="utf-8")
    projects.write(recipe, text.replace(f"  - mods/{MOD}\n", f"  - mods/{MOD}\n  - mods/turned\n"))
    builder(cpu, "build", RECIPE, "--no-prove")
    unlike = compared(cpu, f"{repository}:2", f"{repository}:3", code=1)
    assert unlike["verdict"] == "different"
    assert min(each["apart"] for each in unlike["texts"]) > 0.01
    assert all(each["parting"] for each in unlike["texts"] if each["kind"] == "all")
    kept = json.loads(Path(unlike["file"]).read_text(encoding="utf-8"))
    assert (kept["kind"], kept["sampling"]["reference"]) == ("same", f"{repository}:2")
    assert "same answers" in builder(cpu, "show", f"{repository}:3")
    assert "same" in builder(cpu, "matrix")
    refused = run_command(cpu, "pair", MODEL, f"{repository}:3", code=1).stderr
    assert f"same {repository}:2: perplexity" in refused


@pytest.mark.long
def test_other_arguments_are_compared_with_the_same_image(unchanged: Project) -> None:
    image = f"{repository_of(unchanged)}:1"
    harmless = ["--set", "max-num-seqs=8", "--depth", "1024", "--", "--max-num-batched-tokens", "300"]
    alike = compared(unchanged, image, *harmless)
    assert alike["verdict"] in {"identical", "equivalent"}
    other = compared(unchanged, "1", MODEL, "--depth", "1024", "--", "--dtype", "float32")
    assert (other["verdict"], other["passed"]) == ("different", True)  # within what builder.yaml allows
    assert {each["depth"] for each in other["texts"]} == {1024}
    kept = json.loads(Path(other["file"]).read_text(encoding="utf-8"))
    assert kept["subject"]["overrides"] == {"--": "--dtype float32"}


@pytest.mark.long
def test_a_checkpoint_is_compared_with_the_weights_that_are_paired(
    unchanged: Project, endpoint: Endpoint, tmp_path: Path
) -> None:
    assert f"vllm serve {MODEL}" in (unchanged.root / RECIPE).read_text(encoding="utf-8")
    argv = ["python3", "/here/faulty_models.py", "/models", "dense", "scale=0.1"]
    run_in(endpoint, f"{repository_of(unchanged)}:1", argv, {HERE: "/here", tmp_path: "/models"})
    projects.write(unchanged.root / "checkpoints/off/checkpoint.yaml", CHECKPOINT.format(folder=tmp_path))
    builder(unchanged, "checkpoints", "build", "off")
    unlike = compared(unchanged, "1", MODEL, "--checkpoint", "off", "--depth", "1024", code=1)
    assert unlike["verdict"] == "different"
    assert min(each["apart"] for each in unlike["texts"]) > 0.01
    assert unlike["prompts_differ"] == []
    kept = json.loads(Path(unlike["file"]).read_text(encoding="utf-8"))
    assert kept["subject"]["overrides"]["weights"].startswith("off@")
    assert kept["sampling"]["reference"] == f"{repository_of(unchanged)}:1"


@pytest.mark.long
def test_another_recipe_of_the_model_is_compared_with_the_paired_one(unchanged: Project) -> None:
    text = (unchanged.root / RECIPE).read_text(encoding="utf-8")
    name = f"{repository_of(unchanged)}-served"
    other = projects.replaced(text, (name, f"{name}-other"), ("--enforce-eager", "--enforce-eager --dtype float16"))
    projects.write(unchanged.root / "recipes/other.yaml", other)
    unlike = compared(unchanged, "1", MODEL, "--recipe", "other", "--depth", "1024")
    assert (unlike["verdict"], unlike["passed"], unlike["notes"]) == ("different", True, [])
    kept = json.loads(Path(unlike["file"]).read_text(encoding="utf-8"))
    assert kept["subject"]["recipe"] == "recipes/other.yaml"
    assert "overrides" not in kept["subject"]
