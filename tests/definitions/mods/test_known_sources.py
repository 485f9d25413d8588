"""Places where mods are known to be, and what a recipe is told that names a mod which the project lacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.base.project import Project
from builder.commands.recipes import check_recipes
from builder.definitions import mod, recipe_problems
from builder.definitions.recipe import load_recipe
from builder.moving import copies
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


NAME = "fix-qwen3.6-chat-template"
# The most named ones of 240 public recipes.
MOST_NAMED = {
    "fix-qwen3.5-chat-template", "fix-qwen3-coder-next", NAME, "fix-qwen3.5-autoround", "gpu-mem-util-gb",
    "drop-caches", "nemotron-nano",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = projects.make(tmp_path)
    projects.add_recipe(tmp_path, "lost", "small", "Org/Model", [f"mods/{NAME}", "mods/nowhere"])
    return project


def test_every_shipped_address_is_at_a_commit_and_has_the_name_of_its_mod(tmp_path: Path) -> None:
    shipped = mod.read_known_sources(Project(tmp_path))
    assert shipped.keys() >= MOST_NAMED
    for name, text in shipped.items():
        parsed = copies.parse_address(text)
        assert mod.NAME.fullmatch(name)
        assert re.fullmatch("[0-9a-f]{40}", parsed.ref), text
        assert parsed.path == f"mods/{name}", text


def test_the_command_stands_in_every_message_on_a_recipe_that_lacks_the_mod(project: Project) -> None:
    remedy = f"`builder mods add {mod.read_known_sources(project)[NAME]}` brings it from where it is known to be"
    (checked,) = check_recipes(project, ["lost"])
    told = [note.message for note in checked.problems if "no mod" in note.message]
    assert told == [
        f"no mod `{NAME}` in mods/; {remedy}",
        "no mod `nowhere` in mods/; `builder mods add` brings it from where it is kept",
    ]
    with pytest.raises(FileProblemsError) as caught:
        recipe_problems.require_buildable(project, [load_recipe(project, project.recipes / "lost.yaml")])
    assert sorted(problem.message for problem in caught.value.problems) == [
        f"no mod `{NAME}` in mods/; {remedy}",
        "no mod `nowhere` in mods/; there are: template",
    ]
    with pytest.raises(UsageError) as missing:
        mod.load_mod(project, f"mods/{NAME}")
    assert missing.value.hint == remedy


def test_a_project_adds_places_and_goes_before_the_shipped_ones(project: Project) -> None:
    own = "git@git.example:team/mods.git//nowhere@v1"
    projects.write(project.root / "builder.yaml", f"mod_sources: {{nowhere: '{own}', {NAME}: '/srv/mods//other'}}\n")
    assert mod.remedy(project, "nowhere").startswith(f"`builder mods add {own}` brings")
    assert mod.remedy(project, NAME).startswith(f"`builder mods add /srv/mods//other --as {NAME}` brings")
    assert mod.remedy(project, "drop-caches")
    assert mod.remedy(project, "unheard-of") == ""


@pytest.mark.parametrize("text", ["mod_sources: {house: '--upload-pack=x'}", "mod_sources: {'../x': 'https://x//y'}"])
def test_a_wrong_builder_yaml_leaves_the_shipped_places(project: Project, text: str) -> None:
    shipped = mod.read_known_sources(project)
    projects.write(project.root / "builder.yaml", f"{text}\n")
    assert mod.read_known_sources(project) == shipped
