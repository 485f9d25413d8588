"""The recipes verb: what recipes there are, and what one of them starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.commands import recipes_check
from builder.commands.recipes_check import CheckedRecipe
from builder.definitions import target
from builder.definitions.recipes import command
from builder.errors import ImageStateError, UsageError
from builder.lock import reading
from builder.numbered import status
from builder.serving import image_selection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.definitions.recipes.command import ServeCommand
    from builder.lock.model import ImageName, Lock
    from builder.workspace import Workspace


@dataclass(frozen=True)
class RecipeRow:
    """A recipe with the image that serves it now, and how that stands in the engine. ``image`` is None, and ``state``
    ``none``, where none was built yet."""

    checked: CheckedRecipe
    image: ImageName | None
    paired: bool
    state: str


@dataclass(frozen=True)
class RecipeOverview:
    """All recipes; ``engine_error`` says why every state is unknown, and is empty where an engine answered."""

    rows: tuple[RecipeRow, ...]
    engine_error: str


@dataclass(frozen=True)
class ShownRecipe:
    """A recipe, what it starts, and the image that serves it."""

    row: RecipeRow
    command: ServeCommand


def overview(workspace: Workspace) -> RecipeOverview:
    """The project's recipes."""
    lock = reading.of(workspace.project)
    rows = [_row(lock, checked) for checked in recipes_check.check(workspace.project, ())]
    return _with_states(workspace, lock, rows)


def show(
    workspace: Workspace, text: str, overrides: Mapping[str, str], extra: Sequence[str]
) -> tuple[ShownRecipe, str]:
    """The recipe called ``text`` with its command rendered, and why its image's state is unknown where it is.

    Raises what its file and the overrides have to say.
    """
    found = target.find(workspace.project, text).recipe
    if found is None:
        raise UsageError(
            f"`{text}` is an image definition, not a recipe", hint="`builder recipes list` shows the recipes"
        )
    rendered = command.render(found, overrides, extra)
    lock = reading.of(workspace.project)
    row = _row(lock, CheckedRecipe(found.file, found, (), recipes_check.warnings(found)))
    seen = _with_states(workspace, lock, [row])
    return ShownRecipe(seen.rows[0], rendered), seen.engine_error


def _row(lock: Lock, checked: CheckedRecipe) -> RecipeRow:
    if checked.recipe is None:
        return RecipeRow(checked, None, paired=False, state="none")
    try:
        found = image_selection.for_recipe(lock, checked.recipe)
    except ImageStateError:
        return RecipeRow(checked, None, paired=False, state="none")
    return RecipeRow(checked, found.image, paired=found.reason == "paired", state="unknown")


def _with_states(workspace: Workspace, lock: Lock, rows: Iterable[RecipeRow]) -> RecipeOverview:
    seen = status.overview(workspace, lock)
    states = {row.name: row.state for row in seen.rows}
    return RecipeOverview(
        tuple(replace(row, state=states[row.image]) if row.image else row for row in rows), seen.engine_error
    )
