from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.definitions import build_target, recipe, recipe_problems
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.recipe import Recipe


HEAD = "name: x\ncontainer: small\n"
BROKEN = "name: x\ncontainer: smal\nmods: [mods/templat, ./mods/other/]\ncommand: vllm serve x --port {prt}\n"
NO_VALUE = "recipes/r.yaml:4:30: no value for {prt}; there are: none"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.make(tmp_path)


def load(project: Project, text: str) -> Recipe:
    projects.write(project.recipes / "r.yaml", text)
    return recipe.load_recipe(project, project.recipes / "r.yaml")


def problems(project: Project, text: str) -> list[str]:
    return [str(problem) for problem in recipe_problems.recipe_problems(load(project, text))]


def notes(project: Project, text: str) -> list[str]:
    return [str(note) for note in recipe_problems.notes(project, load(project, text))]


def test_every_problem_has_its_location(project: Project) -> None:
    assert problems(project, BROKEN) == [NO_VALUE]


def test_what_the_project_lacks_is_a_note(project: Project) -> None:
    assert notes(project, BROKEN) == [
        "recipes/r.yaml:2:1: no image definition makes `smal`; did you mean `small`?",
        "recipes/r.yaml:3:8: no mod `templat` in mods/; did you mean `template`?",
        "recipes/r.yaml:3:22: no mod `other` in mods/; `builder mods add` brings it from where it is kept",
    ]
    (note,) = notes(project, "name: x\ncontainer: vllm/vllm-openai:v0.20.0\ncommand: x\n")
    assert note == (
        "recipes/r.yaml:2:1: no image definition makes `vllm/vllm-openai:v0.20.0`; an image of that name that the "
        "engine has is served; `builder adopt vllm/vllm-openai:v0.20.0` numbers it"
    )


@pytest.mark.parametrize("container", ["small", "small:latest", "small:3"])
def test_an_image_that_is_made_here_needs_no_note(project: Project, container: str) -> None:
    assert notes(project, f"name: x\ncontainer: {container}\ncommand: x\n") == []


def test_a_definition_that_cannot_be_read_hides_no_other(project: Project) -> None:
    projects.write(project.dockerfiles / "broken/image.yaml", "repository: [\n")
    assert notes(project, "name: x\ncontainer: small\ncommand: x\n") == []
    (note,) = notes(project, "name: x\ncontainer: other\ncommand: x\n")
    assert note.startswith("recipes/r.yaml:2:1: which definition makes `other` is not known: dockerfiles/broken/")


def test_a_valid_recipe_has_no_problems(project: Project) -> None:
    text = f"{HEAD}mods: [template, mods/template, ./mods/template, mods/template/]\ncommand: vllm serve x\n"
    assert problems(project, text) == notes(project, text) == []


def test_one_for_an_unknown_image_is_refused_with_all_that_is_wrong_in_it(project: Project) -> None:
    projects.write(project.recipes / "r.yaml", BROKEN)
    with pytest.raises(FileProblemsError) as caught:
        build_target.definition_of(project, build_target.find_target(project, "r"))
    container = "recipes/r.yaml:2:1: container: no image definition makes `smal`; there are: small"
    assert caught.value.message.splitlines() == [container, NO_VALUE]


def test_the_problems_of_several_recipes_are_told_at_once(project: Project) -> None:
    for name in ("b", "a"):
        projects.write(project.recipes / f"{name}.yaml", f"{HEAD}command: x {{y}}\n")
    recipes = [recipe.load_recipe(project, project.recipes / f"{name}.yaml") for name in ("b", "a", "chat")]
    with pytest.raises(FileProblemsError) as caught:
        recipe_problems.require_none([*recipes, *recipes])
    message = "3:12: no value for {y}; there are: none"
    assert caught.value.message.splitlines() == [f"recipes/a.yaml:{message}", f"recipes/b.yaml:{message}"]
    recipe_problems.require_none(recipes[2:])


def test_the_text_of_a_template_is_not_taken_for_json(project: Project) -> None:
    template = "'{{%- for one in messages -%}} {{{{ one.content }}}} {{%- endfor -%}}'"
    assert problems(project, f"{HEAD}command: |\n  vllm serve x --chat-template {template}\n") == []
    (message,) = problems(project, f"{HEAD}command: |\n  vllm serve x --other {template}\n")
    assert message.startswith("recipes/r.yaml:4:27: the value of --other is no JSON: ")


def test_a_mod_that_cannot_be_baked_is_a_note_with_what_to_use(project: Project) -> None:
    projects.add_mod(project.root, "loop", "nohup watch.sh &\n", {"watch.sh": "x"})
    text = f"{HEAD}mods: [template, mods/loop]\ncommand: vllm serve x\n"
    (note,) = notes(project, text)
    assert "mod loop cannot be baked: run.sh starts a process that is to outlive it, which no image keeps" in note
    assert "in the recipe's command" in note
