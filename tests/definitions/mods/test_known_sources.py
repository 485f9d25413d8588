"""Places where mods are known to be, and what a recipe is told that names a mod which the project lacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from builder.commands import recipes_check
from builder.copies import address
from builder.definitions.mods import known_sources, mod_reading
from builder.definitions.recipes import recipe as recipes
from builder.definitions.recipes import recipe_problems
from builder.errors import FileProblemsError, UsageError
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path

    from builder.project import Project

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


def test_every_shipped_address_is_at_a_commit_and_has_the_name_of_its_mod() -> None:
    shipped = known_sources.shipped()
    assert shipped.keys() >= MOST_NAMED
    for name, text in shipped.items():
        parsed = address.parse(text)
        assert mod_reading.NAME.fullmatch(name)
        assert re.fullmatch("[0-9a-f]{40}", parsed.ref), text
        assert parsed.path == f"mods/{name}", text


def test_the_command_stands_in_every_message_on_a_recipe_that_lacks_the_mod(project: Project) -> None:
    remedy = f"`builder mods add {known_sources.shipped()[NAME]}` brings it from where it is known to be"
    (checked,) = recipes_check.run(project, ["lost"])
    told = [note.message for note in checked.problems if "no mod" in note.message]
    assert told == [
        f"no mod `{NAME}` in mods/; {remedy}",
        "no mod `nowhere` in mods/; `builder mods add` brings it from where it is kept",
    ]
    with pytest.raises(FileProblemsError) as caught:
        recipe_problems.require_buildable(project, [recipes.load(project, project.recipes / "lost.yaml")])
    assert sorted(problem.message for problem in caught.value.problems) == [
        f"no mod `{NAME}` in mods/; {remedy}",
        "no mod `nowhere` in mods/; there are: template",
    ]
    with pytest.raises(UsageError) as missing:
        mod_reading.load(project, f"mods/{NAME}")
    assert missing.value.hint == remedy


def test_a_project_adds_places_and_goes_before_the_shipped_ones(project: Project) -> None:
    own = "git@git.example:team/mods.git//nowhere@v1"
    projects.write(project.root / "builder.yaml", f"mod_sources: {{nowhere: '{own}', {NAME}: '/srv/mods//other'}}\n")
    assert known_sources.remedy(project, "nowhere").startswith(f"`builder mods add {own}` brings")
    assert known_sources.remedy(project, NAME).startswith(f"`builder mods add /srv/mods//other --as {NAME}` brings")
    assert known_sources.remedy(project, "drop-caches")
    assert known_sources.remedy(project, "unheard-of") == ""


@pytest.mark.parametrize("text", ["mod_sources: {house: '--upload-pack=x'}", "mod_sources: {'../x': 'https://x//y'}"])
def test_a_wrong_builder_yaml_leaves_the_shipped_places(project: Project, text: str) -> None:
    projects.write(project.root / "builder.yaml", f"{text}\n")
    assert known_sources.read(project) == known_sources.shipped()
