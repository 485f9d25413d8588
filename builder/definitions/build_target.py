"""The targets on the command line: a definition, a repository, or a recipe."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from builder.base.errors import FileProblemsError, UsageError
from builder.base.values import dataclass
from builder.base.words import did_you_mean
from builder.definitions import image, recipe

if TYPE_CHECKING:
    from builder.base.project import Project


@dataclass(frozen=True)
class Target:
    """The definition that the user named, and the recipe if it was named through one. ``definition`` is None if no
    readable definition builds the recipe's container. Usually it is a community image; see `definition_of`."""

    definition: str | None
    recipe: recipe.Recipe | None = None


def find_target(project: Project, text: str, models: Collection[str] | None = None) -> Target:
    """Finds the target that ``text`` names: ``tf5``, ``vllm-node-tf5``, ``recipes/x.yaml``, ``x`` or ``folder/x``.
    ``models`` are the models that the caller also accepts, for the hint. Raises UsageError if ``text`` names nothing,
    FileProblemsError with all problems of an invalid recipe."""
    if text in image.definition_names(project):
        return Target(text)
    if loaded := _load(project, text):
        return of_recipe(project, loaded)
    if definition := image.of_repository(project, text):
        return Target(definition)
    names = (*image.definition_names(project), *recipe.recipe_names(project))
    suggestion = did_you_mean(text, models or ()) or did_you_mean(recipe.name_of(text), names)
    hint = suggestion or f"definitions and recipes here: {', '.join(names) or 'none'}"
    message = f"`{text}` is not a {'' if models is None else 'model, '}definition, repository or recipe"
    raise UsageError(message, hint=hint)


def of_recipe(project: Project, loaded: recipe.Recipe) -> Target:
    """The target of a recipe, also if some definition cannot be read: a rollback requires no definition."""
    with suppress(FileProblemsError):
        return Target(image.of_repository(project, loaded.repository), loaded)
    return Target(None, loaded)


def find_recipe(project: Project, text: str) -> recipe.Recipe:
    """Reads the recipe that ``text`` names, even if a definition has the same name. Raises UsageError if there is none,
    FileProblemsError with all problems of an invalid recipe."""
    if loaded := _load(project, text):
        return loaded
    find_target(project, text)
    raise UsageError(f"`{text}` is an image definition, not a recipe", hint="`builder recipes list` shows the recipes")


def _load(project: Project, text: str) -> recipe.Recipe | None:
    path = recipe.find_recipe(project, text)
    return recipe.load_recipe(project, path) if path else None


def definition_of(project: Project, named: Target) -> str:
    """The definition that builds the image of a target. Raises FileProblemsError if no definition builds the recipe's
    container, with the alternatives, or if a definition that cannot be read could build it."""
    if named.definition is not None:
        return named.definition
    if named.recipe is None:
        raise ValueError("a target without a recipe has a definition")
    from builder.definitions import recipe_problems

    image.of_repository(project, named.recipe.repository)
    container = named.recipe.container
    every = {*recipe_problems.recipe_problems(named.recipe), recipe_problems.unknown_container(project, named.recipe)}
    raise FileProblemsError(
        tuple(every),
        hint=f"an image that others built needs no build: `builder adopt {container}` gives the image a number. To bake"
        f" mods into the image, write a definition with `base: {container}`. To use an image of this project instead,"
        " set `container` to the repository of its definition",
    )
