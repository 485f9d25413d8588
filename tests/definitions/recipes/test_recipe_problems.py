from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.definitions import target
from builder.definitions.recipes import recipe, recipe_problems
from builder.errors import FileProblemsError
from builder.project import Project
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "name: x\ncontainer: small\n"
BROKEN = "name: x\ncontainer: smal\nmods: [mods/templat, other]\ncommand: vllm serve x --port {prt}\n"
SAID = [
    "recipes/r.yaml:2:1: container: no image definition makes `smal`; there are: small",
    "recipes/r.yaml:3:8: no mod `templat` in mods/; did you mean template?",
    "recipes/r.yaml:3:22: no mod `other` in mods/; there are: template",
    "recipes/r.yaml:4:30: no value for {prt}; there are: none",
]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.make(tmp_path)


def problems(project: Project, text: str) -> list[str]:
    projects.write(project.recipes / "r.yaml", text)
    loaded = recipe.load(project, project.recipes / "r.yaml")
    return [str(problem) for problem in recipe_problems.problems(project, loaded)]


def test_every_problem_has_its_location(project: Project) -> None:
    assert problems(project, BROKEN) == SAID


def test_a_valid_recipe_has_no_problems(project: Project) -> None:
    assert problems(project, f"{HEAD}mods: [template, mods/template]\ncommand: vllm serve x\n") == []


def test_one_for_an_unknown_image_is_refused_with_all_that_is_wrong_in_it(project: Project) -> None:
    projects.write(project.recipes / "r.yaml", BROKEN)
    with pytest.raises(FileProblemsError) as caught:
        target.find(project, "r")
    assert caught.value.message.splitlines() == SAID


def test_the_problems_of_several_recipes_are_told_at_once(project: Project) -> None:
    for name in ("b", "a"):
        projects.write(project.recipes / f"{name}.yaml", f"{HEAD}command: x {{y}}\n")
    recipes = [recipe.load(project, project.recipes / f"{name}.yaml") for name in ("b", "a", "chat")]
    with pytest.raises(FileProblemsError) as caught:
        recipe_problems.require_none(project, [*recipes, *recipes])
    message = "3:12: no value for {y}; there are: none"
    assert caught.value.message.splitlines() == [f"recipes/a.yaml:{message}", f"recipes/b.yaml:{message}"]
    recipe_problems.require_none(project, recipes[2:])


def test_the_text_of_a_template_is_not_taken_for_json(project: Project) -> None:
    template = "'{{%- for one in messages -%}} {{{{ one.content }}}} {{%- endfor -%}}'"
    assert problems(project, f"{HEAD}command: |\n  vllm serve x --chat-template {template}\n") == []
    (message,) = problems(project, f"{HEAD}command: |\n  vllm serve x --other {template}\n")
    assert message.startswith("recipes/r.yaml:3:1: the value of --other is no JSON: ")
