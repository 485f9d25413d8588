"""The subject of a run as the files of a project tell it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from builder.base.project import Project
from builder.base.words import sha256_of
from builder.definitions import recipe as recipes
from builder.evidence import standing
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from tests import projects

NAME = ImageName("small", 1)
MODEL = "Org/Model-1B"
COMMIT = "ab" * 20
RECIPE = """\
recipe_version: "1"
name: chat
model: Org/Model-1B
container: small
volumes: [./templates:/templates:ro]
env: {{VLLM_X: "1"}}
command: |
  vllm serve Org/Model-1B --port 8000 {options}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.make(tmp_path)


def lock(recipe: str | None = "recipes/chat.yaml", revision: str | None = COMMIT) -> Lock:
    image = NumberedImage("2026-11-20T22:00:00Z", "small", "linux/amd64", "sha256:1", "sha256:2", 1)
    return Lock().with_image(NAME, image).with_pairing(MODEL, Pairing(NAME, recipe, revision))


def write(project: Project, options: str) -> None:
    projects.write(project.recipes / "chat.yaml", RECIPE.format(options=options))


def arguments(kind: str, line: str, env: dict[str, object] | None = None) -> str:
    return standing.of_arguments("prove" if kind == "prove" else "bench", shlex.split(line), env or {})


def test_the_parts_come_from_the_lock_and_the_recipe(project: Project) -> None:
    subject = standing.present_subject(project, lock(), NAME, MODEL, "prove")
    assert (subject.image, subject.fingerprint, subject.model) == ("small:1", "sha256:1", MODEL)
    assert (subject.revision, subject.recipe, subject.template) == (COMMIT, "recipes/chat.yaml", None)
    assert subject.arguments == arguments("prove", "vllm serve Org/Model-1B --port 8000")


def test_what_cannot_be_told_is_none(project: Project) -> None:
    assert standing.present_subject(project, lock(None, None), NAME, MODEL, "prove").arguments is None
    for file in ("recipes/gone.yaml", "../outside.yaml", "images.lock"):
        assert standing.present_subject(project, lock(file), NAME, MODEL, "prove").arguments is None
    projects.write(project.recipes / "chat.yaml", "not: a recipe")
    subject = standing.present_subject(project, lock(), NAME, MODEL, "bench")
    assert (subject.arguments, subject.recipe) == (None, "recipes/chat.yaml")
    nothing = standing.present_subject(project, Lock(), NAME, None, "bench")
    assert (nothing.fingerprint, nothing.model, nothing.revision) == ("", None, None)


def test_an_earlier_pairing_tells_of_its_own_image(project: Project) -> None:
    later = ImageName("small", 2)
    moved = lock().with_pairing(MODEL, Pairing(later, "recipes/other.yaml", "cd" * 20))
    assert standing.present_subject(project, moved, NAME, MODEL, "prove").revision == COMMIT
    assert standing.present_subject(project, moved, later, MODEL, "prove").revision == "cd" * 20


def test_the_recipe_that_is_given_counts(project: Project) -> None:
    projects.write(project.recipes / "other.yaml", RECIPE.format(options="--tool-call-parser hermes"))
    other = recipes.load_recipe(project, project.recipes / "other.yaml")
    subject = standing.present_subject(project, lock(), NAME, MODEL, "prove", recipe=other)
    assert subject.recipe == "recipes/other.yaml"
    assert subject.arguments == arguments("prove", "vllm serve M --tool-call-parser hermes")


SAME = [
    ("prove", "vllm serve M", "vllm serve M --max-model-len 4096 --host 0.0.0.0 --port 9"),
    ("prove", "vllm serve M --tool-call-parser hermes", "vllm serve N --tool_call_parser=hermes -tp 2"),
    ("bench", "vllm serve M --a 1 --b 2", "vllm serve M --b=2 --a=1 --port 9 --served-model-name x y --host h"),
    ("bench", 'vllm serve M --c \'{"a": 1, "b": 2}\'', 'vllm serve M --c \'{"b":2,"a":1}\''),
]
OTHER = [
    ("prove", "vllm serve M", "vllm serve M --chat-template /t.jinja"),
    ("prove", "vllm serve M --tool-call-parser hermes", "vllm serve M --tool-call-parser qwen3_coder"),
    ("prove", "vllm serve M", "vllm serve M --enable-auto-tool-choice"),
    ("prove", "vllm serve M", "vllm serve M --reasoning-parser qwen3"),
    ("bench", "vllm serve M", "vllm serve M --max-num-seqs 2"),
    ("bench", "vllm serve M --lora a b", "vllm serve M --lora a c"),
    ("bench", "vllm serve M --c '{\"a\": 1}'", "vllm serve M --c '{\"a\": 2}'"),
]


@pytest.mark.parametrize(("kind", "a", "b"), SAME)
def test_what_does_not_count_changes_nothing(kind: str, a: str, b: str) -> None:
    assert arguments(kind, a) == arguments(kind, b)


@pytest.mark.parametrize(("kind", "a", "b"), OTHER)
def test_each_option_that_counts_changes_the_digest(kind: str, a: str, b: str) -> None:
    assert arguments(kind, a) != arguments(kind, b)


def test_the_environment_counts_for_a_server() -> None:
    assert arguments("bench", "x", {"A": 1}) != arguments("bench", "x", {"A": 2})
    assert arguments("prove", "x", {"A": 1}) == arguments("prove", "x", {"A": 2})


def test_a_template_of_this_machine_is_looked_at(project: Project) -> None:
    write(project, "--chat-template /templates/chat.jinja")
    assert standing.present_subject(project, lock(), NAME, MODEL, "prove").template is None
    projects.write(project.root / "templates/chat.jinja", "{{ messages }}")
    template = standing.present_subject(project, lock(), NAME, MODEL, "prove").template
    assert template == sha256_of(b"{{ messages }}")
    projects.write(project.root / "templates/chat.jinja", "{{ messages }} ")
    assert standing.present_subject(project, lock(), NAME, MODEL, "prove").template not in {None, template}


@pytest.mark.parametrize("path", ["/templates", "/templates/../../../etc/passwd", "/other/x", "template_chatml.jinja"])
def test_no_other_file_is_taken_for_a_template(project: Project, path: str) -> None:
    (project.root / "templates").mkdir()
    write(project, f"--chat-template {path}")
    assert standing.present_subject(project, lock(), NAME, MODEL, "prove").template is None


def test_a_branch_stands_for_the_commit_that_the_cache_has(project: Project, tmp_path: Path) -> None:
    hub = tmp_path / "cache/hub/models--Org--Model-1B"
    projects.write(hub / "refs/main", COMMIT)
    (hub / "snapshots" / COMMIT).mkdir(parents=True)
    environ = {"HF_HOME": str(tmp_path / "cache")}
    subject = standing.present_subject(project, lock(revision="main"), NAME, MODEL, "prove", environ=environ)
    assert subject.revision == COMMIT
    assert standing.present_subject(project, lock(revision="main"), NAME, MODEL, "prove").revision == "main"
