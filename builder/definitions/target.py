"""What a person names on the command line: a definition, a repository, or a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.definitions.recipes import recipe
from builder.errors import FileProblemsError, UsageError
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

    from builder.project import Project


@dataclass(frozen=True)
class Target:
    """The definition that was meant, and the recipe where it was reached through one."""

    definition: str
    recipe: recipe.Recipe | None = None


def find(project: Project, text: str, models: Collection[str] | None = None) -> Target:
    """What ``text`` names: ``tf5``, ``vllm-node-tf5``, ``recipes/x.yaml`` or ``x``. ``models`` are those that the
    caller would have taken as well, for the hint.

    Raises UsageError where it names nothing, FileProblemsError with all that is wrong in a recipe where it asks for an
    unknown image.
    """
    if text in image.names(project):
        return Target(text)
    file = text if text.endswith((".yaml", ".yml")) else f"recipes/{text}.yaml"
    for path in (project.root / file, Path(file)):
        if path.is_file():
            return _of_recipe(project, recipe.load(project, path))
    definition = image.of_repository(project, text)
    if definition:
        return Target(definition)
    known = (*image.names(project), *recipe.names(project))
    suggestion = did_you_mean(text, models or ()) or did_you_mean(Path(text).stem, known)
    raise UsageError(
        f"`{text}` is no {'' if models is None else 'model, '}image definition, repository or recipe",
        hint=suggestion or f"definitions and recipes here: {', '.join(known) or 'none'}",
    )


def _of_recipe(project: Project, wanted: recipe.Recipe) -> Target:
    definition = image.of_repository(project, wanted.repository)
    if definition is None:
        from builder.definitions.recipes import recipe_problems

        raise FileProblemsError(recipe_problems.problems(project, wanted))
    return Target(definition, wanted)
