"""Selection of the numbered image that serves a recipe or a model: the one that it is paired with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions import image, serving, target
from builder.definitions.recipes import recipe as recipes
from builder.errors import ImageStateError, UsageError
from builder.lock.model import ImageName, Lock, NumberedImage

if TYPE_CHECKING:
    from builder.definitions.recipes.recipe import Recipe
    from builder.definitions.serving import ServeSettings
    from builder.project import Project


@dataclass(frozen=True)
class SelectedImage:
    """A recipe and the image that serves it. ``reason`` says why it is this image: ``numbered`` by the recipe itself,
    ``paired`` with its model, or only ``current`` in its repository, because no pairing is recorded."""

    recipe: Recipe
    image: ImageName
    record: NumberedImage
    reason: str


def select(project: Project, lock: Lock, text: str) -> SelectedImage:
    """Selects the image for ``text``: a recipe (its file or its name) or a model of images.lock.

    Raises UsageError if ``text`` names neither, ImageStateError if no image has been built for it yet.
    """
    if text in lock.models:
        recipe: Recipe | None = _recipe_of_model(project, lock, text)
    else:
        recipe = target.find(project, text, lock.models).recipe
    if recipe is None:
        raise UsageError(f"`{text}` is an image definition; a recipe or a model can be served")
    return for_recipe(lock, recipe)


def for_recipe(lock: Lock, recipe: Recipe) -> SelectedImage:
    """Selects the image for ``recipe``. Raises ImageStateError if none has been built for it yet."""
    name, reason = _image(lock, recipe)
    record = lock.image(name) if name else None
    if name is None or record is None:
        raise ImageStateError(
            f"images.lock has no image {name}" if name else f"no image of {recipe.repository} has been built yet",
            hint=f"`builder build {recipe.file}`"
            if recipe.number is None
            else "`builder list` shows the numbered images",
        )
    return SelectedImage(recipe, name, record, reason)


def serve_settings(project: Project, selection: SelectedImage) -> ServeSettings:
    """The settings for containers of the selected image: those of its definition, or for an adopted one those of the
    definition whose images belong to the same repository, if there is one."""
    definition = selection.record.definition or image.of_repository(project, selection.image.repository)
    return serving.of(project, definition or "")


def warning(selection: SelectedImage) -> str:
    """Returns a warning if the image was selected only because no pairing is recorded; empty otherwise."""
    if selection.reason != "current":
        return ""
    recipe = selection.recipe
    return f"{recipe.model or recipe.name} is paired with no image; {selection.image} is the current one"


def _recipe_of_model(project: Project, lock: Lock, model: str) -> Recipe:
    """Loads the recipe that a model was paired by. Raises UsageError if there is none."""
    file = lock.models[model].pairing.recipe
    path = project.root / Path(file) if file else None
    if path is None or not path.is_file():
        reason = f"its recipe {file} is gone" if file else "it was paired without a recipe"
        raise UsageError(f"how to serve {model} is not known: {reason}", hint="name a recipe instead of the model")
    return recipes.load(project, path)


def _image(lock: Lock, recipe: Recipe) -> tuple[ImageName | None, str]:
    if recipe.number is not None:
        return ImageName(recipe.repository, recipe.number), "numbered"
    model = lock.models.get(recipe.model or "")
    # Another recipe may serve the same model from another repository: its pairing is not this one's.
    if model and (model.pairing.recipe == recipe.file or model.pairing.image.repository == recipe.repository):
        return model.pairing.image, "paired"
    repository = lock.images.get(recipe.repository)
    current = repository.current if repository else None
    return (ImageName(recipe.repository, current) if current else None), "current"
