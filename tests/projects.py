"""Small projects for tests: a definition whose image builds in a second, with a mod and a recipe."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from builder.base.project import Project
from tests import shipped_files

if TYPE_CHECKING:
    from pathlib import Path


REPOSITORY_ROOT = shipped_files.CLONE  # for code, scripts and pages; use `shipped_files` for the project

IMAGE = """\
repository: {repository}
description: a few files on a Debian base
platform: host
base: debian:bookworm-slim
args: {{greeting: hello}}
"""

# The bytes differ each time, because the time of the file differs.
GREETING = "RUN echo {{ args.greeting | sh }} > /greeting\n"
# The bytes are the same each time.
SETTLED_GREETING = """\
RUN {{ parts_step.mounts() }} . /run/builder/step.sh; begin_step; echo {{ args.greeting | sh }} > /greeting; end_step
"""

DOCKERFILE = f"""\
{{% import "_parts/metadata.j2" as parts_metadata %}}
{{% import "_parts/mods.j2" as parts_mods %}}
FROM {{{{ base }}}} AS base
{GREETING}\
{{{{ parts_metadata.write(workspace) }}}}
{{{{ parts_mods.bake(mods, workspace, "base") }}}}
"""

RECIPE = """\
recipe_version: "1"
name: {name}
model: {model}
container: {repository}
mods: {mods}
command: |
  vllm serve {model} --port 8000
"""


def make(root: Path, repository: str = "small") -> Project:
    """Makes a project at ``root`` with the definition ``small``, the mod ``template`` and a recipe that uses both."""
    write(root / "dockerfiles/small/image.yaml", IMAGE.format(repository=repository))
    write(root / "dockerfiles/small/Dockerfile.j2", DOCKERFILE)
    shutil.copytree(shipped_files.project().dockerfiles / "_parts", root / "dockerfiles/_parts")
    add_mod(root, "template", 'cp chat.jinja "$WORKSPACE_DIR/chat.jinja"\n', {"chat.jinja": "version one\n"})
    add_recipe(root, "chat", repository, "Org/Model-1B", ["mods/template"])
    return Project(root)


def settle(project: Project) -> None:
    """Gives the image of ``small`` a first step with the same bytes each time. BuildKit may run an unchanged step
    twice, and then uses either result."""
    path = project.root / "dockerfiles/small/Dockerfile.j2"
    text = path.read_text(encoding="utf-8")
    assert GREETING in text
    write(path, '{% import "_parts/step.j2" as parts_step %}\n' + text.replace(GREETING, SETTLED_GREETING))


def with_own_steps(project: Project, mark: str) -> None:
    """Gives the image of ``small`` a unique first step. BuildKit keeps both results of a step that ran twice, and uses
    either: two images could then have different layers instead of shared layers."""
    path = project.root / "dockerfiles/small/image.yaml"
    write(path, path.read_text(encoding="utf-8").replace("greeting: hello", f"greeting: hello {mark}"))


def add_mod(root: Path, name: str, script: str, files: dict[str, str], yaml: str = "") -> None:
    """Adds a mod with a ``run.sh`` if ``script`` is given, and a mod.yaml if ``yaml`` is given."""
    if script:
        write(root / "mods" / name / "run.sh", f"set -eu\n{script}")
    for path, text in files.items():
        write(root / "mods" / name / path, text)
    if yaml:
        write(root / "mods" / name / "mod.yaml", yaml)


def add_recipe(root: Path, name: str, repository: str, model: str, mods: list[str]) -> None:
    text = RECIPE.format(name=name, repository=repository, model=model, mods=mods)
    write(root / "recipes" / f"{name}.yaml", text)


def replaced(text: str, *edits: tuple[str, str]) -> str:
    """Applies each edit (old, new) to ``text``. Fails the test if the old text is missing."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
