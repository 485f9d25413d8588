"""The gate before a pointer moves to an image: its evidence is there, or the user says why it moves without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import ConflictError, UsageError
from builder.evidence import requirements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import ImageName, Lock
    from builder.workspace import Workspace

# The beginning of a note that was given with `--force`: what is paired so is never put back by itself.
FORCED = "without its evidence: "


def models_of(workspace: Workspace, lock: Lock, image: ImageName) -> tuple[str, ...]:
    """The models that an image is made for: that of the recipe that it was built from, and those that it serves."""
    record = lock.image(image)
    recipe = requirements.built_from(workspace.project, record) if record else None
    own = (recipe.model,) if recipe and recipe.model else ()
    return tuple(dict.fromkeys((*own, *lock.models_on(image))))


def refuse_note_alone(note: str, *, force: bool) -> None:
    """Raises UsageError for a note that is given without `--force`, which it is the reason of."""
    if note and not force:
        raise UsageError(
            "`--note` goes with `--force`, and says why", hint="`builder mark` notes what was observed of an image"
        )


def passed(
    workspace: Workspace, lock: Lock, image: ImageName, by_recipe: Mapping[str, Recipe | None], note: str = ""
) -> str:
    """Lets a pointer move to ``image`` for the models of ``by_recipe``, each by its recipe (None: the one on record).
    Returns the note to record: ``note``, which overrides what is missing and then says so.

    Raises ConflictError with all that is missing where there is no ``note``.
    """
    lacking = {
        model: requirements.missing(workspace.project, lock, image, model, recipe=recipe, environ=workspace.environment)
        for model, recipe in by_recipe.items()
    }
    lines = [
        f"  {each}; `{requirements.command(each, image, model)}`" for model, parts in lacking.items() for each in parts
    ]
    if not lines:
        return note
    if note:
        return f"{FORCED}{note}"
    names = ", ".join(model for model, parts in lacking.items() if parts)
    raise ConflictError(
        "\n".join([f"{image} lacks what {names} requires: nothing was moved", *lines]),
        hint="these commands record it; `builder pair` and `builder promote` with `--force --note TEXT` do without",
    )


def refuse_unproven(workspace: Workspace, model: str, recipe: Recipe | None) -> None:
    """Raises ConflictError for a model that requires evidence of an image that cannot have any yet."""
    if requirements.required(workspace.project, model, recipe):
        raise ConflictError(
            f"{model} requires evidence, of which a new image has none: nothing was done",
            hint="without `--model` it gets its number; `builder pair` then says what is missing",
        )
