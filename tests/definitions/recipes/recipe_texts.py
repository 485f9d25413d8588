"""Recipes for tests, read from text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.base.project import Project
from builder.definitions import recipe
from builder.definitions.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path


def read(folder: Path, text: str) -> recipe.ParsedRecipe:
    """A recipe of this text, called ``r.yaml``, with its problems."""
    (folder / "r.yaml").write_text(text, encoding="utf-8")
    return recipe.read_recipe(Project(folder), folder / "r.yaml")


def problem_lines(folder: Path, text: str) -> list[str]:
    """The problems of a recipe, as lines."""
    return [str(problem) for problem in read(folder, text).problems]


def make(folder: Path, command: str, head: str = "") -> Recipe:
    """A recipe with this command, further keys before it."""
    indented = "".join(f"  {line}\n" if line else "\n" for line in command.split("\n"))
    parsed = read(folder, f"name: x\ncontainer: small\n{head}command: |\n{indented}")
    assert parsed.recipe is not None, parsed.problems
    return parsed.recipe
