"""The ``recipes list`` command: each recipe with the image that serves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.commands import recipes_check
from builder.errors import ImageStateError
from builder.lock import reading
from builder.numbered import status
from builder.serving import image_selection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.commands.recipes_check import CheckedRecipe
    from builder.lock.model import ImageName, Lock
    from builder.numbered.status import ImageState
    from builder.workspace import Workspace


@dataclass(frozen=True)
class RecipeRow:
    """A recipe with the image that serves it now, and the state of that in the engine. ``image`` is None, and ``state``
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


def run(workspace: Workspace) -> RecipeOverview:
    """Reads the project's recipes, and the states of their images. Where no engine answers, the states are unknown."""
    return overview(workspace, reading.of(workspace.project), recipes_check.run(workspace.project, ()))


def overview(workspace: Workspace, lock: Lock, recipes: Iterable[CheckedRecipe]) -> RecipeOverview:
    """The image that serves each of ``recipes``, with its state."""
    images = status.overview(workspace, lock)
    states = {row.name: row.state for row in images.rows}
    return RecipeOverview(tuple(_status(lock, states, checked) for checked in recipes), images.engine_error)


def _status(lock: Lock, states: Mapping[ImageName, ImageState], checked: CheckedRecipe) -> RecipeRow:
    if checked.recipe is None:
        return RecipeRow(checked, None, paired=False, state="none")
    try:
        selected = image_selection.for_recipe(lock, checked.recipe)
    except ImageStateError:
        return RecipeRow(checked, None, paired=False, state="none")
    return RecipeRow(checked, selected.image, selected.reason == "paired", states[selected.image])
