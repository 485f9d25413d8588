"""The chat templates that recipes expect in an image: which ones those are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.building import verification
from builder.definitions import mod, recipe
from tests import projects
from tests.plan import shipped

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project
    from builder.plan.plan_model import Plan


RECIPE = """\
recipe_version: "1"
name: x
model: Org/Model-1B
container: {container}
mods: {mods}
{more}command: |
  {command}
"""


def plan(project: Project, *mods: str) -> Plan:
    made = shipped.plan("cpu", "wheel", "linux/amd64")
    loaded = tuple(mod.load_mod(project, name) for name in mods)
    return replace(made, definition=replace(made.definition, repository="small"), mods=loaded)


def add(
    project: Project,
    command: str,
    *,
    name: str = "served",
    container: str = "small",
    mods: tuple[str, ...] = (),
    more: str = "",
) -> None:
    text = RECIPE.format(container=container, mods=[f"mods/{mod}" for mod in mods], more=more, command=command)
    projects.write(project.recipes / f"{name}.yaml", text)


def expected(project: Project, *mods: str) -> list[str]:
    return list(verification.expected_templates(project, plan(project, *mods), None))


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("vllm serve Org/M --chat-template ours.jinja", ["ours.jinja"]),
        ("vllm serve Org/M --chat-template=/opt/ours.jinja", ["/opt/ours.jinja"]),
        ("vllm serve Org/M --chat_template sub/ours.jinja", ["sub/ours.jinja"]),
        ("vllm serve Org/M", []),
        ("vllm serve Org/M --chat-template '{{{{ messages }}}}'", []),
        ("cd /elsewhere && vllm serve Org/M --chat-template ours.jinja", []),
        ("vllm serve Org/M --chat-template /opt/ours.jinja > /log", ["/opt/ours.jinja"]),
        ("vllm serve Org/M --chat-template $HOME/ours.jinja > /log", []),
        ("vllm serve Org/M --chat-template /mnt/ours.jinja", []),
    ],
)
def test_what_the_image_itself_has_to_bring(tmp_path: Path, command: str, paths: list[str]) -> None:
    project = projects.make(tmp_path)
    add(project, command, more="volumes: [/srv/models:/mnt]\n")
    assert expected(project) == paths


def test_recipes_that_do_not_use_the_image_as_it_is_say_nothing_about_it(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    serve = "vllm serve Org/M --chat-template {}.jinja"
    add(project, serve.format("own"), name="own", mods=("template",))
    add(project, serve.format("further"), name="further", mods=("template", "not-here"))
    add(project, serve.format("other"), name="other", container="other-image")
    add(project, serve.format("numbered"), name="numbered", container="small:3")
    projects.write(project.recipes / "broken.yaml", "recipe_version: [")
    assert expected(project, "template") == ["own.jinja"]
    assert expected(project) == []


def test_the_recipe_that_is_built_counts_wherever_it_lies(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    add(project, "vllm serve Org/M --chat-template ours.jinja", name="../elsewhere", mods=("left-out",))
    own = recipe.load_recipe(project, tmp_path / "elsewhere.yaml")
    (place,) = verification.expected_templates(project, plan(project), own).values()
    assert str(place) == "elsewhere.yaml:7:36"
