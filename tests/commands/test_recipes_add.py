"""Recipes copied from a real git server, with the mods that they name."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ConflictError, SourceError, UsageError
from builder.base.events import ignore
from builder.base.project import Project
from builder.commands import mods, recipes
from builder.definitions import mod
from builder.definitions.recipe import load_recipe, recipe_names
from builder.moving.copies import path_of, read_origin
from tests import projects
from tests.conftest import command
from tests.sources import git_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.commands.recipes import RecipeCopies


MAIN = "refs/heads/main"


def recipe(*mods: str) -> str:
    return projects.RECIPE.format(name="chat", model="Org/Model", repository="vllm-node", mods=list(mods))


class Served:
    """A served repository with recipes and mods, and a project with a mod of its own."""

    def __init__(self, server: git_server.Server, repository: git_server.Repository, project: Project) -> None:
        self.url = f"{server.url}/community.git"
        self.repository = repository
        self.project = project

    def plan(self, path: str, name: str | None = None, *, everything: bool = False) -> RecipeCopies:
        return recipes.plan_recipe_copies(self.project, f"{self.url}{path}", name, ignore, everything=everything)

    def add(self, path: str, name: str | None = None) -> None:
        mods.add_mods(self.project, recipes.together(self.plan(path, name), with_mods=True))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    repository = git_server.make_repository(tmp_path / "served/community.git")
    files: dict[str, str | bytes | None] = {
        "recipes/chat.yaml": recipe("mods/house", "./mods/other/", "here", "gone"),
        "recipes/4x/chat.yaml": recipe(),
        "recipes/small.yml": recipe("house"),
        "recipes/broken.yaml": "name: [\n",
        "mods/house/run.sh": "cp a b\n",
        "mods/other/mod.yaml": "description: x\nenv: {A: 1}\n",
        "docs/example.yaml": "a: b\n",
    }
    repository.commit(MAIN, "Start", files)
    projects.write(tmp_path / "project/dockerfiles/.keep", "")
    projects.write(tmp_path / "project/mods/here/run.sh", "cp a b\n")
    with git_server.serve(tmp_path / "served") as server:
        yield Served(server, repository, Project(tmp_path / "project"))


def test_the_folders_that_a_recipe_mounts_are_told(served: Served) -> None:
    text = recipe() + 'volumes: ["/:/host", "~/.ssh:/keys:ro"]\n'
    served.repository.commit(MAIN, "Mount", {"recipes/mounts.yaml": text})
    planned = recipes.together(served.plan("//recipes/mounts"), with_mods=True)
    (note,) = recipes.add_recipes(served.project, planned)
    assert note == "recipes/mounts mounts /:/host, ~/.ssh:/keys:ro of this machine: what it serves is root there"
    assert recipes.add_recipes(served.project, recipes.together(served.plan("//recipes/small"), with_mods=True)) == ()


def test_a_recipe_brings_the_mods_that_the_project_lacks(served: Served) -> None:
    copies = served.plan("//recipes/chat")
    assert [each.name for each in copies.recipes] == ["chat"]
    assert [each.name for each in copies.mods] == ["house", "other"]
    assert copies.missing == {"gone": ""}
    served.add("//recipes/chat.yaml")
    assert mod.mod_names(served.project) == ("here", "house", "other")
    assert recipe_names(served.project) == ("chat",)
    text = (served.project.recipes / "chat.yaml").read_text()
    assert text == recipe("mods/house", "./mods/other/", "here", "gone")
    copied = read_origin(served.project, "recipe", "chat")
    assert copied
    assert copied.path == "recipes/chat.yaml"


def test_a_mod_that_was_copied_by_one_who_was_killed_before_its_origin_gets_it(served: Served) -> None:
    served.add("//recipes/chat.yaml")
    file = path_of(served.project, "mod", "house")
    text = file.read_text()
    file.unlink()
    assert [each.name for each in served.plan("//recipes/chat").mods] == ["house"]
    served.add("//recipes/chat.yaml")
    assert file.read_text() == text
    # A mod of the project's own stays so.
    file.unlink()
    projects.write(served.project.mods / "house/run.sh", "cp a c\n")
    assert served.plan("//recipes/chat").mods == ()


def test_folders_and_other_suffixes_are_kept_apart(served: Served) -> None:
    with pytest.raises(UsageError, match="has 4 recipes there:\n  recipes/4x/chat.yaml\n  recipes/broken.yaml"):
        served.plan("")
    assert [each.name for each in served.plan("", everything=True).recipes] == ["4x/chat", "broken", "chat", "small"]
    assert [each.name for each in served.plan("//recipes/4x").recipes] == ["chat"]
    served.add("//recipes/small", "ours.yaml")
    assert recipe_names(served.project) == ("ours",)
    assert served.plan("//docs/example.yaml").recipes[0].name == "example"
    with pytest.raises(SourceError, match="there is no recipe at recipes/chats of"):
        served.plan("//recipes/chats")


def test_a_copy_is_updated_and_edits_are_told(served: Served) -> None:
    served.add("//recipes/chat.yaml", "ours")
    served.repository.commit(MAIN, "Another", {"recipes/chat.yaml": recipe("mods/house")})
    (planned,) = mods.plan_copies_update(served.project, "recipe", ["ours"], None, ignore).copies
    assert (planned.replaces, planned.loses) == (True, False)
    projects.write(served.project.recipes / "ours.yaml", "mine\n")
    (planned,) = mods.plan_copies_update(served.project, "recipe", ["recipes/ours.yaml"], None, ignore).copies
    with pytest.raises(ConflictError, match="recipe ours was edited since it was copied"):
        mods.require_lossless([planned])
    mods.add_mods(served.project, [planned])
    assert (served.project.recipes / "ours.yaml").read_text() == recipe("mods/house")


# As a post of a forum arrives: bullets, curly quotes, one dash for two, no indentation, no backslashes.
FROM_A_FORUM = """\
name: Qwen3.5-122B-A10B-int4-AutoRound

container: small

mods:

  \u2022 mods/here

model: Intel/Qwen3.5-122B-A10B-int4-AutoRound

defaults:
port: 8000
gpu_memory_utilization: 0.82
max-num-seqs: 1

env:
HF_HUB_OFFLINE:\u00a01

command: |
vllm serve Intel/Qwen3.5-122B-A10B-int4-AutoRound
\u2013port {port}
\u2013gpu-memory-utilization {gpu_memory_utilization}
\u2013speculative-config \u2018{{\u201cmethod\u201d: \u201cmtp\u201d, \u201cnum_speculative_tokens\u201d: 1}}\u2019
\u2013max-num-seqs {max-num-seqs}
recipe_version: \u20181\u2019
"""
TYPED = """\
name: Qwen3.5-122B-A10B-int4-AutoRound

container: small

mods:

  - mods/here

model: Intel/Qwen3.5-122B-A10B-int4-AutoRound

defaults:
  port: 8000
  gpu_memory_utilization: 0.82
  max-num-seqs: 1

env:
  HF_HUB_OFFLINE: 1

command: |
  vllm serve Intel/Qwen3.5-122B-A10B-int4-AutoRound \\
  --port {port} \\
  --gpu-memory-utilization {gpu_memory_utilization} \\
  --speculative-config '{{"method": "mtp", "num_speculative_tokens": 1}}' \\
  --max-num-seqs {max-num-seqs}
recipe_version: '1'
"""


def builder(project: Project, *arguments: str, code: int = 0) -> str:
    argv = command(project, *arguments)
    done = subprocess.run(
        argv, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, stdin=subprocess.DEVNULL
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_recipe_from_a_page_is_corrected_shown_and_checked(tmp_path: Path) -> None:
    project = projects.make(tmp_path / "project")
    projects.write(project.mods / "here/run.sh", "cp a b\n")
    post = tmp_path / "post.yaml"
    post.write_text(FROM_A_FORUM, encoding="utf-8")
    (problem, summary) = builder(project, "recipes", "check", str(post), code=2).splitlines()
    assert "was pasted from a page" in problem
    assert summary == "1 recipe checked: 1 problem in 1 of them"
    told = builder(project, "recipes", "add", "--mend", str(post), "--as", "fast")
    assert "  -\u2013port {port}" in told
    assert "  +  --port {port} \\" in told
    assert "recipes/fast.yaml is written" in told
    assert "1 recipe checked: all is well" in told
    assert (project.recipes / "fast.yaml").read_text(encoding="utf-8") == TYPED
    assert post.read_text(encoding="utf-8") == FROM_A_FORUM
    assert load_recipe(project, project.recipes / "fast.yaml").model == "Intel/Qwen3.5-122B-A10B-int4-AutoRound"


def test_a_recipe_of_the_project_is_corrected_in_its_place_and_only_on_agreement(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    path = project.recipes / "post.yaml"
    projects.write(path, FROM_A_FORUM.replace("mods/here", "mods/nowhere").replace("{port}", "{prt}"))
    before = path.read_bytes()
    told = builder(project, "recipes", "add", "--mend", "recipes/post.yaml", code=1)
    assert told.endswith("nothing was changed; --yes writes without asking\n")
    assert path.read_bytes() == before
    told = builder(project, "recipes", "add", "--mend", "recipes/post.yaml", "--yes", code=2)
    assert "recipes/post.yaml is written" in told
    assert "recipes/post.yaml:21:10: no value for {prt}" in told
    assert path.read_text(encoding="utf-8") == TYPED.replace("mods/here", "mods/nowhere").replace("{port}", "{prt}")
    told = builder(project, "recipes", "add", "--mend", "recipes/post.yaml", code=2)
    assert told.startswith("recipes/post.yaml: there is nothing to correct\n")


def test_a_recipe_from_a_page_replaces_no_other(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    chat = (project.recipes / "chat.yaml").read_bytes()
    post = tmp_path / "chat.yaml"
    post.write_text(FROM_A_FORUM, encoding="utf-8")
    with pytest.raises(ConflictError, match="recipes/chat.yaml already exists"):
        recipes.plan_mended(project, str(post), None)
    with pytest.raises(UsageError, match="is no name for a recipe"):
        recipes.plan_mended(project, str(post), "../out")
    with pytest.raises(UsageError, match=r"none\.yaml: No such file"):
        recipes.plan_mended(project, str(tmp_path / "none.yaml"), None)
    assert (project.recipes / "chat.yaml").read_bytes() == chat
