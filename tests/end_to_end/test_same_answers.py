"""Two images compared on the real cpu image: one that answers alike, and one with a fault planted by a mod."""

from __future__ import annotations

import json
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


@pytest.fixture
def cpu(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The shipped project, whose model has to answer as before to be moved."""
    repository = f"{shared.unique_name()}-cpu"
    made = project(tmp_path / "project", repository, RECIPE)
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
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    yield made
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


def paired(cpu: Project) -> int:
    return lock_file.read_lock(cpu.lock).models[MODEL].pairing.image.number


@pytest.mark.long
def test_a_fault_that_only_changes_numbers_holds_the_model_back(
    cpu: Project, endpoint: Endpoint, tmp_path: Path
) -> None:
    image = builder(cpu, "build", RECIPE, "--no-prove").split()[1]
    put_model(endpoint, image, tmp_path / "HF_HOME")
    template = cpu.mods / MOD / TEMPLATE
    projects.write(template, "{#- changed -#}\n" + template.read_text(encoding="utf-8"))
    repository = image.partition(":")[0]
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
def test_other_arguments_are_compared_with_the_same_image(cpu: Project, endpoint: Endpoint, tmp_path: Path) -> None:
    image = builder(cpu, "build", RECIPE, "--no-prove").split()[1]
    put_model(endpoint, image, tmp_path / "HF_HOME")
    harmless = ["--set", "max-num-seqs=8", "--depth", "1024", "--", "--max-num-batched-tokens", "300"]
    alike = compared(cpu, image, *harmless)
    assert alike["verdict"] in {"identical", "equivalent"}
    other = compared(cpu, "1", MODEL, "--depth", "1024", "--", "--dtype", "float32")
    assert (other["verdict"], other["passed"]) == ("different", True)  # within what builder.yaml allows
    assert {each["depth"] for each in other["texts"]} == {1024}
    kept = json.loads(Path(other["file"]).read_text(encoding="utf-8"))
    assert kept["subject"]["overrides"] == {"--": "--dtype float32"}
