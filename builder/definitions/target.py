"""Targets that the user names on the command line: a definition, a repository, or a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.definitions.recipes import finding, recipe
from builder.errors import FileProblemsError, UsageError
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

    from builder.project import Project


@dataclass(frozen=True)
class Target:
    """The definition that the user named, and the recipe if it was named through one."""

    definition: str
    recipe: recipe.Recipe | None = None


def find(project: Project, text: str, models: Collection[str] | None = None) -> Target:
    """Finds the target that ``text`` names: ``tf5``, ``vllm-node-tf5``, ``recipes/x.yaml``, ``x`` or ``folder/x``.
    ``models`` are the models that the caller accepts as well, for the hint.

    Raises UsageError where it names nothing, FileProblemsError with every problem of a recipe whose image is unknown.
    """
    if text in image.names(project):
        return Target(text)
    path = finding.find(project, text)
    if path:
        return _of_recipe(project, recipe.load(project, path))
    definition = image.of_repository(project, text)
    if definition:
        return Target(definition)
    names = (*image.names(project), *finding.names(project))
    suggestion = did_you_mean(text, models or ()) or did_you_mean(finding.name_of(text), names)
    raise UsageError(
        f"`{text}` is no {'' if models is None else 'model, '}image definition, repository or recipe",
        hint=suggestion or f"definitions and recipes here: {', '.join(names) or 'none'}",
    )


def _of_recipe(project: Project, loaded: recipe.Recipe) -> Target:
    definition = image.of_repository(project, loaded.repository)
    if definition is None:
        from builder.definitions.recipes import recipe_problems

        every = {*recipe_problems.problems(loaded), recipe_problems.unknown_container(project, loaded)}
        raise FileProblemsError(tuple(every))
    return Target(definition, loaded)
