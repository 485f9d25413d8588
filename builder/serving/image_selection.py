"""Which numbered image serves a recipe or a model: the one that it is paired with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions import target
from builder.definitions.recipes import recipe as recipes
from builder.errors import ImageStateError, UsageError
from builder.lock.model import ImageName, Lock, NumberedImage

if TYPE_CHECKING:
    from builder.definitions.recipes.recipe import Recipe
    from builder.project import Project


@dataclass(frozen=True)
class SelectedImage:
    """A recipe and the image that serves it. ``why`` says how the image was found: ``numbered`` by the recipe itself,
    ``paired`` with its model, or only ``current`` in its repository, because no pairing is recorded."""

    recipe: Recipe
    image: ImageName
    record: NumberedImage
    reason: str


def select(project: Project, lock: Lock, text: str) -> SelectedImage:
    """What serves ``text``: a recipe (its file, or its name) or a model of images.lock.

    Raises UsageError where ``text`` names neither, ImageStateError where no image was built for it yet.
    """
    if text in lock.models:
        recipe: Recipe | None = _recipe_of_model(project, lock, text)
    else:
        recipe = target.find(project, text, lock.models).recipe
    if recipe is None:
        raise UsageError(f"`{text}` is an image definition; a recipe or a model can be served")
    return for_recipe(lock, recipe)


def for_recipe(lock: Lock, recipe: Recipe) -> SelectedImage:
    """What serves ``recipe``. Raises ImageStateError where no image was built for it yet."""
    name, why = _image(lock, recipe)
    recorded = lock.image(name) if name else None
    if name is None or recorded is None:
        raise ImageStateError(
            f"images.lock has no image {name}" if name else f"no image of {recipe.repository} has been built yet",
            hint=f"`builder build {recipe.file}`"
            if recipe.number is None
            else "`builder list` shows the numbered images",
        )
    return SelectedImage(recipe, name, recorded, why)


def warning(found: SelectedImage) -> str:
    """What is worth saying of how the image was found: nothing where it is the one paired with the model."""
    if found.reason != "current":
        return ""
    return f"{found.recipe.model or found.recipe.name} is paired with no image; {found.image} is the current one"


def _recipe_of_model(project: Project, lock: Lock, model: str) -> Recipe:
    """The recipe that a model was paired by."""
    file = lock.models[model].pairing.recipe
    path = project.root / Path(file) if file else None
    if path is None or not path.is_file():
        said = f"its recipe {file} is gone" if file else "it was paired without a recipe"
        raise UsageError(f"how to serve {model} is not known: {said}", hint="name a recipe instead of the model")
    return recipes.load(project, path)


def _image(lock: Lock, recipe: Recipe) -> tuple[ImageName | None, str]:
    if recipe.number is not None:
        return ImageName(recipe.repository, recipe.number), "numbered"
    held = lock.models.get(recipe.model or "")
    # Another recipe may serve the same model from another repository: its pairing is not this one's.
    if held and (held.pairing.recipe == recipe.file or held.pairing.image.repository == recipe.repository):
        return held.pairing.image, "paired"
    repository = lock.images.get(recipe.repository)
    current = repository.current if repository else None
    return (ImageName(recipe.repository, current) if current else None), "current"
