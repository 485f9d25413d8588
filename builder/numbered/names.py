"""Names of numbered images as the user types them (``vllm-node-tf5:7``, ``tf5:7``), looked up in images.lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.lock.model import ImageName, Lock, NumberedImage

if TYPE_CHECKING:
    from builder.definitions.recipes.recipe import Recipe
    from builder.project import Project

_HINT = "`builder list` shows the numbered images; `builder adopt IMAGE` gives one that is in the engine a number"


def repository(project: Project, lock: Lock, text: str) -> str | None:
    """The repository called ``text``, or that of the definition called so; None where there is neither."""
    if text in lock.images:
        return text
    from builder.definitions import image

    if text in image.names(project):
        return image.repository_of(project, text)
    return text if image.of_repository(project, text) else None


def numbered(project: Project, lock: Lock, text: str) -> tuple[ImageName, NumberedImage]:
    """The numbered image called ``text``: without a number the current one; of a model or a recipe the image that
    serves it.

    Raises UsageError where images.lock has no such image, FileProblemsError for a recipe that cannot be read.
    """
    name, colon, number = text.rpartition(":")
    if name not in lock.images and (served := _serving(project, lock, text)) and (image := lock.image(served)):
        return served, image
    repository_name = repository(project, lock, name if colon else text)
    record = lock.images.get(repository_name) if repository_name else None
    if repository_name is None or record is None:
        raise UsageError(f"images.lock has no image `{text}`", hint=_HINT)
    if not colon or number == "latest":
        number = str(record.current or "")
    if not number.isdecimal() or int(number) not in record.numbers:
        raise UsageError(f"{repository_name} has no number {number}", hint=f"its numbers: {_numbers(record.numbers)}")
    return ImageName(repository_name, int(number)), record.numbers[int(number)]


def recipe(project: Project, lock: Lock, text: str) -> Recipe | None:
    """The recipe called ``text``; None where there is none, or a repository or a definition has that name. Raises
    FileProblemsError where it cannot be read."""
    from builder.definitions.recipes import finding
    from builder.definitions.recipes import recipe as recipes

    path = None if repository(project, lock, text) else finding.find(project, text)
    return recipes.load(project, path) if path else None


def model(project: Project, lock: Lock, text: str) -> str | None:
    """The model of images.lock called ``text``, or that of the recipe called so; None where there is neither."""
    if text in lock.models:
        return text
    named = recipe(project, lock, text)
    return named.model if named and named.model in lock.models else None


def _serving(project: Project, lock: Lock, text: str) -> ImageName | None:
    """The image that serves the model or the recipe called ``text``: the paired one, else the current one of the
    recipe's repository."""
    if paired := model(project, lock, text):
        return lock.models[paired].pairing.image
    named = recipe(project, lock, text)
    current = lock.images[named.repository].current if named and named.repository in lock.images else None
    number = (named.number or current) if named else None
    return ImageName(named.repository, number) if named and number else None


def _numbers(numbers: dict[int, NumberedImage]) -> str:
    shown = sorted(numbers, reverse=True)
    return ", ".join(map(str, shown[:10])) + (" …" if len(shown) > 10 else "")
