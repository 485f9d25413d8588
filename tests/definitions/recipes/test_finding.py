from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import UsageError
from builder.base.project import Project
from builder.commands import recipes
from builder.definitions import build_target, recipe
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


RECIPE = "name: x\ncontainer: small\ncommand: vllm serve x\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = projects.make(tmp_path)
    for name in ("4x/big.yaml", "4x/chat.yaml", "8x/deep/other.yml", "8x/twice.yaml", "4x/twice.yaml", "b.yml"):
        projects.write(project.recipes / name, RECIPE)
    projects.write(project.recipes / ".hidden/x.yaml", "no recipe")
    projects.write(project.recipes / "README.md", "no recipe")
    return project


def test_names_say_the_folder(project: Project) -> None:
    assert recipe.recipe_names(project) == ("4x/big", "4x/chat", "4x/twice", "8x/deep/other", "8x/twice", "b", "chat")


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("chat", "chat.yaml"),
        ("chat.yaml", "chat.yaml"),
        ("recipes/chat", "chat.yaml"),
        ("4x/chat", "4x/chat.yaml"),
        ("4x/chat.yaml", "4x/chat.yaml"),
        ("recipes/4x/chat.yaml", "4x/chat.yaml"),
        ("./recipes/4x/chat", "4x/chat.yaml"),
        ("big", "4x/big.yaml"),
        ("big.yaml", "4x/big.yaml"),
        ("other", "8x/deep/other.yml"),
        ("deep/other", "8x/deep/other.yml"),
        ("b", "b.yml"),
        ("b.yml", "b.yml"),
    ],
)
def test_a_recipe_is_found_by_path_and_by_name(project: Project, text: str, file: str) -> None:
    recipe = build_target.find_target(project, text).recipe
    assert recipe is not None
    assert recipe.file == f"recipes/{file}"
    (checked,) = recipes.check_recipes(project, (text,))
    assert checked.file == recipe.file


@pytest.mark.parametrize("text", ["nothing", "hidden/x", "README.md", "4x", "", "."])
def test_what_is_no_recipe_is_not_found(project: Project, text: str) -> None:
    assert recipe.find_recipe(project, text) is None


def test_a_path_counts_from_the_project_and_from_here(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    projects.write(elsewhere / "x/mine.yaml", RECIPE)
    monkeypatch.chdir(elsewhere)
    for text in ("x/mine", "x/mine.yaml", str(elsewhere / "x/mine")):
        path = recipe.find_recipe(project, text)
        assert path is not None
        assert path.resolve() == elsewhere / "x/mine.yaml"


def test_a_name_that_several_have_is_refused_with_all_of_them(project: Project) -> None:
    with pytest.raises(UsageError, match=r"recipes/4x/twice\.yaml, recipes/8x/twice\.yaml") as caught:
        recipe.find_recipe(project, "twice")
    assert "folder" in caught.value.hint


def test_a_folder_is_checked_with_all_that_is_in_it(project: Project) -> None:
    assert [checked.file for checked in recipes.check_recipes(project, ("4x",))] == [
        "recipes/4x/big.yaml",
        "recipes/4x/chat.yaml",
        "recipes/4x/twice.yaml",
    ]
    assert len(recipes.check_recipes(project, ())) == 7


def test_recipes_that_cannot_be_read_hide_no_other(project: Project) -> None:
    projects.write(project.recipes / "a.yaml", "name: [\n")
    (project.recipes / "c.yaml").write_bytes(b"\xff")
    assert [name for name, _ in recipe.readable_recipes(project)] == [
        "4x/big",
        "4x/chat",
        "4x/twice",
        "8x/deep/other",
        "8x/twice",
        "b",
        "chat",
    ]
