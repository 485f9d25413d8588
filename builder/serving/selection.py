"""The image that serves a recipe or a model: the number that is paired with it, or the engine's image of that name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.base.errors import FileProblemsError, ImageStateError, UsageError
from builder.base.values import dataclass, replace
from builder.base.words import shell_word
from builder.definitions import build_target, image, recipe
from builder.definitions.mod import name_of
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.numbers import adopted

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.image import ServeSettings
    from builder.definitions.recipe import Recipe


@dataclass(frozen=True)
class SelectedImage:
    """A recipe and the numbered image that serves it. The ``reason``: the recipe names the number (``numbered``), the
    model is ``paired`` with it, it was ``adopted`` from the name in the recipe, or it is ``current``."""

    recipe: Recipe
    image: ImageName
    record: NumberedImage
    reason: str

    @property
    def name(self) -> str:
        """The name of the image in an engine."""
        return str(self.image)

    @property
    def missing_mods(self) -> tuple[str, ...]:
        """The recipe's mods that the image does not contain."""
        return tuple(mod for mod in self.recipe.mods if name_of(mod) not in self.record.mods)


@dataclass(frozen=True)
class UnnumberedImage:
    """A recipe whose container has no number: the engine's image of that name serves it. ``definition`` is the
    definition of images of that name, if there is one."""

    recipe: Recipe
    definition: str | None

    @property
    def name(self) -> str:
        """The name of the image in an engine."""
        return self.recipe.container

    @property
    def missing_mods(self) -> tuple[str, ...]:
        """The recipe's mods: the image is not known to contain any of them."""
        return self.recipe.mods


ServedImage = SelectedImage | UnnumberedImage

# The entrypoint of NVIDIA's images, in /opt/nvidia. It turns on CUDA's forward compatibility if the driver is older
# than the image's CUDA, and then runs the command.
_NVIDIA = "nvidia_entrypoint.sh"


def select_any(project: Project, lock: Lock, text: str) -> ServedImage:
    """Selects the image for ``text`` as `select_image` does, or the engine's image of that name if it has no number."""
    return any_for_recipe(project, lock, _recipe(project, lock, text))


def any_for_recipe(project: Project, lock: Lock, recipe: Recipe) -> ServedImage:
    """Selects the image for ``recipe`` as `select_any` does."""
    name, _ = _image(lock, recipe)
    repository = lock.images.get(recipe.repository)
    if (name is None or lock.image(name) is None) and not (repository and repository.numbers):
        definition = image.of_repository(project, recipe.repository)
        # A tag that is a number belongs to this project if the project makes such images.
        if recipe.number is None or definition is None:
            return UnnumberedImage(recipe, definition)
    return for_recipe(lock, recipe)


def select_image(project: Project, lock: Lock, text: str) -> SelectedImage:
    """Selects the numbered image for ``text``: a recipe (its file or its name) or a model of images.lock."""
    return for_recipe(lock, _recipe(project, lock, text))


def for_recipe(lock: Lock, recipe: Recipe) -> SelectedImage:
    """Selects the numbered image for ``recipe``. Raises ImageStateError if no number was built yet,
    or if no number is current."""
    name, reason = _image(lock, recipe)
    if name is None:
        if (record := lock.images.get(recipe.repository)) and record.numbers:
            newest = ImageName(recipe.repository, max(record.numbers))
            message = f"no image of {recipe.repository} is current"
            raise ImageStateError(message, hint=f"to use the newest one: `builder promote {newest}`")
        adopts = f"`builder adopt {recipe.container}` gives a number to an existing image"
        message = f"no image of {recipe.repository} has been built yet"
        raise ImageStateError(message, hint=f"`builder build {shell_word(recipe.file)}`; {adopts}")
    return replace(with_number(lock, recipe, name), reason=reason)


def with_number(lock: Lock, recipe: Recipe, name: ImageName) -> SelectedImage:
    """Selects the number ``name`` for ``recipe``, even if another one is paired. Raises ImageStateError if images.lock
    has no such number."""
    record = lock.image(name)
    if record is None:
        raise ImageStateError(f"images.lock has no image {name}", hint="`builder list` shows the numbered images")
    return SelectedImage(recipe, name, record, "numbered")


def serve_settings(project: Project, selection: ServedImage, entrypoint: Sequence[str] | None = None) -> ServeSettings:
    """The settings for containers of the selected image: those of its definition, or of the definition for the same
    name. An image that was built elsewhere keeps NVIDIA's ``entrypoint`` (None: as recorded by adopt). It gets no GPU
    if its vLLM is a build for the CPU (``0.32.0+cpu``)."""
    if isinstance(selection, UnnumberedImage):
        settings = image.serve_settings(project, selection.definition or "")
    elif selection.record.definition:
        return image.serve_settings(project, selection.record.definition)
    else:
        settings = image.serve_settings(project, image.of_repository(project, selection.image.repository) or "")
        contents = adopted.read_adopted(project.build_directory(selection.image.repository, selection.image.number))
        entrypoint = contents.entrypoint if entrypoint is None and contents else entrypoint
        vllm = selection.record.versions.get("vllm")
        if vllm and vllm.version.partition("+")[2].split(".")[0] == "cpu":
            settings = replace(settings, gpus="none", ipc="private")
    is_nvidias = len(entrypoint or ()) == 1 and PurePosixPath((entrypoint or ("",))[0]).name == _NVIDIA
    return replace(settings, keep_entrypoint=settings.keep_entrypoint or is_nvidias)


def selection_warning(selection: ServedImage) -> str:
    """A warning if the image has no number, or was selected only because no pairing is recorded."""
    recipe = selection.recipe
    if isinstance(selection, UnnumberedImage):
        adopts = f"`builder adopt {recipe.container}` gives the image a number"
        return f"{recipe.container} has no number, so you cannot return to this image if the name moves: {adopts}"
    if selection.reason != "current":
        return ""
    return f"{recipe.model or recipe.name} is not paired with an image; the current image {selection.image} is used"


def mods_warning(project: Project, selection: ServedImage) -> str:
    """A warning about the recipe's mods that the image does not contain; empty if it has all of them."""
    if not selection.missing_mods:
        return ""
    built_here = isinstance(selection, SelectedImage) and selection.record.adopted is None
    lacks = f"{selection.name} {'does not contain' if built_here else 'is not known to contain'}"
    bakes = f"`builder build {shell_word(selection.recipe.file)}` builds an image with them"
    with suppress(FileProblemsError):  # `builder build` reports a definition that cannot be read
        if not image.of_repository(project, selection.recipe.repository):
            bakes = f"a definition with `base: {selection.recipe.container}` can add them"
    return f"{lacks} {', '.join(selection.missing_mods)}: {bakes}"


def _image(lock: Lock, recipe: Recipe) -> tuple[ImageName | None, str]:
    if recipe.number is not None:
        return ImageName(recipe.repository, recipe.number), "numbered"
    same_name = _adopted(lock, recipe.container)
    repositories = {recipe.repository, *(name.repository for name in same_name)}
    model = lock.models.get(recipe.model or "")
    # Another recipe may serve the same model from another repository: that pairing does not belong to this recipe.
    if model and (model.pairing.recipe == recipe.file or model.pairing.image.repository in repositories):
        return model.pairing.image, "paired"
    repository = lock.images.get(recipe.repository)
    if repository and repository.current:
        return ImageName(recipe.repository, repository.current), "current"
    return (same_name[-1], "adopted") if same_name else (None, "current")


def _adopted(lock: Lock, container: str) -> tuple[ImageName, ...]:
    """The numbers that were adopted from an image of exactly this name, the last one last."""
    numbers = [
        (image.built, ImageName(repository, number))
        for repository, record in lock.images.items()
        for number, image in record.numbers.items()
        if image.adopted and image.adopted.image in (container, f"{container}:latest") and image.status != "bad"
    ]
    return tuple(name for _, name in sorted(numbers))


def _recipe(project: Project, lock: Lock, text: str) -> Recipe:
    if text not in lock.models:
        target = build_target.find_target(project, text, lock.models).recipe
        if target is None:
            message = f"`{text}` is an image definition; only a recipe or a model can be served"
            shows = "`builder recipes list` shows the recipes, `builder list --models` the models"
            raise UsageError(message, hint=f"{shows}; a number is written IMAGE:N")
        return target
    return recipe_of_model(project, lock, text)


def recipe_of_model(project: Project, lock: Lock, model: str) -> Recipe:
    """The recipe of a model's pairing. Raises UsageError if the pairing has no recipe, or if its file no longer
    exists."""
    file = lock.models[model].pairing.recipe
    path = recipe.recorded(project, file)
    if path is None:
        reason = f"its recipe {file} no longer exists" if file else "the model was paired without a recipe"
        others = [name for name, each in recipe.readable_recipes(project) if each.model == model]
        hint = f"name a recipe instead of the model{': ' if others else ''}{' or '.join(others)}"
        raise UsageError(f"no recipe says how to serve {model}: {reason}", hint=hint)
    return recipe.load_recipe(project, path)
