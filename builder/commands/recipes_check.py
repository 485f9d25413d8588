"""The ``recipes check`` command: finds errors in recipes: in their text, their command, and the names that they use."""

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
    """A recipe file: the recipe where it can be read, the problems in it, and warnings."""

    file: str
    recipe: Recipe | None
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...] = ()


def run(project: Project, paths: Sequence[str]) -> tuple[CheckedRecipe, ...]:
    """Checks every recipe in ``paths``: files, folders and names; without any, the project's own.

    Raises UsageError for a path that is none of these.
    """
    files = dict.fromkeys(file for path in paths or (str(project.recipes),) for file in _files(project, path))
    return tuple(_check(project, file) for file in files)


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


def _check(project: Project, path: Path) -> CheckedRecipe:
    file = project.relative(path)
    try:
        content = recipe.read(project, path)
    except FileProblemsError as error:
        return CheckedRecipe(file, None, error.problems)
    if content.recipe is None:
        return CheckedRecipe(file, None, content.problems)
    problems = recipe_problems.problems(project, content.recipe)
    every = tuple(sorted({*content.problems, *content.written(problems)}))
    return CheckedRecipe(file, content.recipe, every, warnings(content.recipe))


def warnings(checked: Recipe) -> tuple[str, ...]:
    """The warnings about a recipe that has no problems."""
    lines = []
    if checked.ignored_build_args:
        lines.append(f"build_args mean nothing here and are ignored: {' '.join(checked.ignored_build_args)}")
    lines += [
        f"env: {name} looks like a secret; leave it out, and set it in your shell"
        for name, value in checked.env.items()
        if value and name.upper().endswith(("TOKEN", "API_KEY", "PASSWORD", "SECRET"))
    ]
    return tuple(lines)
