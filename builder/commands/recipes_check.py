"""Looking for everything wrong in recipes: in their text, their command, and what they name in this project."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions.recipes import recipe, recipe_problems
from builder.errors import FileProblemsError, UsageError
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.definitions.recipes.recipe import Recipe
    from builder.errors import Problem
    from builder.project import Project

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class CheckedRecipe:
    """One recipe file: the recipe where it can be told, all that is wrong in it, and what is only worth saying."""

    file: str
    recipe: Recipe | None
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...] = ()


def check(project: Project, paths: Sequence[str]) -> tuple[CheckedRecipe, ...]:
    """Every recipe in ``paths``: files, folders and names; without any, the project's own.

    Raises UsageError for a path that is none of these.
    """
    found = dict.fromkeys(file for path in paths or (str(project.recipes),) for file in _files(project, path))
    return tuple(_checked(project, file) for file in found)


def _files(project: Project, text: str) -> list[Path]:
    path = Path(text)
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if path.is_file():
        return [path]
    named = project.recipes / f"{text}.yaml"
    if named.is_file():
        return [named]
    if path == project.recipes:
        return []
    hint = did_you_mean(path.stem, recipe.names(project))
    raise UsageError(f"{text}: no such file, folder or recipe", hint=hint)


def _checked(project: Project, path: Path) -> CheckedRecipe:
    file = project.relative(path)
    try:
        found = recipe.read(project, path)
    except FileProblemsError as error:
        return CheckedRecipe(file, None, error.problems)
    if found.recipe is None:
        return CheckedRecipe(file, None, found.problems)
    problems = recipe_problems.problems(project, found.recipe)
    every = tuple(sorted({*found.problems, *found.written(problems)}))
    return CheckedRecipe(file, found.recipe, every, warnings(found.recipe))


def warnings(checked: Recipe) -> tuple[str, ...]:
    said = []
    if checked.ignored_build_args:
        said.append(f"build_args mean nothing here and are ignored: {' '.join(checked.ignored_build_args)}")
    said += [
        f"env: {name} looks like a secret; leave it out, and set it in your shell"
        for name, value in checked.env.items()
        if value and name.upper().endswith(("TOKEN", "API_KEY", "PASSWORD", "SECRET"))
    ]
    return tuple(said)
