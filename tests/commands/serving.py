"""A project whose images serve a stand-in for vLLM: numbers 1 and 2 of one repository, for one model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.base import processes
from builder.base.project import Project
from builder.definitions import container
from builder.engine.client import Endpoint, environment
from tests import projects, shared, shipped_files

HERE = Path(__file__).parent
MODEL = "Org/Model-1B"
IMAGE = """\
repository: {repository}
description: a few lines of Python that speak as vLLM does
platform: host
base: debian:bookworm-slim
serve: {{gpus: none, ipc: private, shm_size: 64m}}
"""
DOCKERFILE = """\
{% import "_parts/metadata.j2" as parts_metadata %}
{% import "_parts/mods.j2" as parts_mods %}
{% import "_parts/step.j2" as parts_step %}
FROM {{ base }} AS base
RUN {{ parts_step.mounts() }} <<'EOF'
# python3, with the same bytes each time: BuildKit may run it again, though nothing changed
. /run/builder/step.sh
begin_step
apt-get update -qq && apt-get install -qq -y --no-install-recommends python3
end_step
EOF
{{ parts_metadata.write(workspace) }}
{{ parts_mods.bake(mods, workspace, "base") }}
"""
RECIPE = """\
recipe_version: "1"
name: {name}
model: {model}
container: {repository}
mods: [mods/standin]
defaults: {defaults}
{more}command: |
  vllm serve {{served}} --port {{port}} --host 127.0.0.1 {arguments}
"""


def make(root: Path, repository: str) -> Project:
    """The project, with nothing built yet."""
    projects.write(root / "dockerfiles/served/image.yaml", IMAGE.format(repository=repository))
    projects.write(root / "dockerfiles/served/Dockerfile.j2", DOCKERFILE)
    shutil.copytree(shipped_files.project().root / "dockerfiles/_parts", root / "dockerfiles/_parts")
    standin = (HERE / "standin.py").read_text(encoding="utf-8")
    projects.add_mod(root, "standin", "install -m 755 vllm /usr/local/bin/vllm\n", {"vllm": standin})
    recipe(Project(root), repository)
    return Project(root)


def recipe(
    project: Project,
    repository: str,
    *,
    name: str = "chat",
    arguments: str = "",
    more: str = "",
    model: str = MODEL,
    file: str = "chat",
    **defaults: Any,
) -> None:
    """Writes ``recipes/FILE.yaml``; ``arguments`` end its command, ``more`` are further lines."""
    said = json.dumps({"port": 8000, "served": model, **defaults})
    text = RECIPE.format(
        name=json.dumps(name),
        model=json.dumps(model),
        repository=repository,
        defaults=said,
        arguments=arguments,
        more=more,
    )
    projects.write(project.recipes / f"{file}.yaml", text)


@dataclass(frozen=True)
class Kitchen:
    """A copy of the built project for one test, and what is its own there: the service's name and port."""

    project: Project
    repository: str
    name: str
    port: int
    environ: dict[str, str]

    def recipe(self, arguments: str = "", **more: Any) -> None:
        recipe(self.project, self.repository, **{"name": self.name, "port": self.port, "arguments": arguments, **more})


def compose(endpoint: Endpoint, file: Path, *arguments: str, **environ: str) -> None:
    """Runs ``docker compose`` on an exported file."""
    argv = [str(projects.REPOSITORY_ROOT / "scripts/compose"), "-f", str(file), *arguments]
    done = subprocess.run(argv, env={**os.environ, **environment(endpoint), **environ}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def kitchen(built: Project, root: Path, repository: str) -> Kitchen:
    for part in ("dockerfiles", "mods", "builds"):
        shutil.copytree(built.root / part, root / part)
    shutil.copy(built.lock, root / "images.lock")
    # The server has its container's name, so that tests may look for either.
    name = container.container_name(shared.unique_name().removeprefix("builder-"))
    environ = {"HOME": str(root / "home"), "XDG_CACHE_HOME": "", "HF_HOME": "", "HF_HUB_CACHE": ""}
    environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # no model of these tests is anybody's
    made = Kitchen(Project(root), repository, name, processes.free_port(), environ)
    made.recipe()
    return made
