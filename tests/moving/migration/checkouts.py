"""A made-up checkout of the kind that `builder migrate` takes over, and the repository that it was cloned from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import projects

RECIPE = """\
recipe_version: "1"
name: {name}
model: Org/{name}
container: {container}
mods: {mods}
command: vllm serve Org/{name} --port 8000
"""


def make(folder: Path) -> Path:
    """A checkout with the recipes ``chat`` and ``4x/large``, and the mods ``template`` and ``unused``."""
    projects.write(folder / "launch-cluster.sh", "#!/bin/bash\nexit 1\n")
    add_recipe(folder, "chat", mods="[mods/template]")
    add_recipe(folder, "4x/large", container="vllm-node-b12x")
    projects.add_mod(folder, "template", 'cp chat.jinja "$WORKSPACE_DIR/"\n', {"chat.jinja": "one\n"})
    projects.add_mod(folder, "unused", "pip install example==1\n", {})
    return folder


def add_recipe(folder: Path, name: str, container: str = "vllm-node", mods: str = "[]") -> None:
    text = RECIPE.format(name=name.rpartition("/")[2], container=container, mods=mods)
    projects.write(folder / "recipes" / f"{name}.yaml", text)


def cloned(folder: Path) -> Path:
    """The checkout that ``make`` makes, as a clone of the repository ``upstream`` beside it."""
    upstream = make(folder.parent / "upstream")
    git(upstream, "init", "--quiet", "--initial-branch=main")
    git(upstream, "add", "--all")
    git(upstream, "commit", "--quiet", "--message=first")
    git(folder.parent, "clone", "--quiet", str(upstream), str(folder))
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
