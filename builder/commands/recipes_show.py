"""The ``recipes show`` command: a recipe, the command that it starts, and the image that serves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.commands import recipes_check, recipes_list
from builder.commands.recipes_check import CheckedRecipe
from builder.definitions import target
from builder.definitions.recipes import command
from builder.definitions.recipes import recipe as recipes
from builder.errors import UsageError
from builder.lock import reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.commands.recipes_list import RecipeRow
    from builder.definitions.recipes.command import ServeCommand
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ShownRecipe:
    """A recipe, the command that it starts, and the image that serves it."""

    row: RecipeRow
    command: ServeCommand


def run(workspace: Workspace, text: str, overrides: Mapping[str, str], extra: Sequence[str]) -> tuple[ShownRecipe, str]:
    """Reads the recipe called ``text`` and renders its command. The second value says why the state of its image is
    unknown, and is empty where it is known.

    Raises UsageError where there is no such recipe, FileProblemsError for an error in its file or the overrides.
    """
    recipe = target.find(workspace.project, text).recipe
    if recipe is None:
        raise UsageError(
            f"`{text}` is an image definition, not a recipe", hint="`builder recipes list` shows the recipes"
        )
    rendered = command.render(recipe, overrides, extra)
    parsed = recipes.read(workspace.project, workspace.project.root / recipe.file)
    checked = CheckedRecipe(recipe.file, recipe, (), recipes_check.notes(workspace.project, parsed))
    overview = recipes_list.overview(workspace, reading.of(workspace.project), [checked])
    return ShownRecipe(overview.rows[0], rendered), overview.engine_error
