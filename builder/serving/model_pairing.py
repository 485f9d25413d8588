"""The pairing of a model with an image: by which recipe, and at which revision of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions.recipes import finding
from builder.definitions.recipes import recipe as recipes
from builder.errors import UnsafePathError
from builder.numbered import pointers
from builder.serving import model_revision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import ImageName, Lock, Pairing
    from builder.project import Project


@dataclass(frozen=True)
class PairingSource:
    """The source of a model's pairings with images of a repository: ``recipe`` is the one by which it is served,
    ``first_recipe`` the file of its very first one, ``revision`` the revision of the model to record in a new one."""

    first_recipe: str | None
    revision: str | None
    recipe: Recipe | None = None


def source(
    project: Project,
    environ: Mapping[str, str],
    lock: Lock,
    model: str,
    repository: str,
    adopted: str = "",
    named: Recipe | None = None,
) -> PairingSource:
    """Finds the recipe and the revision of a model, before the lock is held: a first pairing takes the recipe that was
    ``named``, else the one for the model and the repository, where there is exactly one; the revision is the one that a
    build would record. ``adopted`` is the name that the image was adopted from, which the recipe may have as well."""
    names = (repository, adopted.removesuffix(":latest"))
    matching = None if model in lock.models else named or _matching_recipe(project, model, names)
    recipe = matching or _paired_by(project, lock, model)
    revision = model_revision.to_record(project, environ, model, recipe)
    return PairingSource(matching.file if matching else None, revision, recipe)


def pairing(lock: Lock, model: str, image: ImageName, origin: PairingSource) -> Pairing:
    """The pairing of a model with an image; an earlier one with it keeps what it recorded."""
    record = lock.models.get(model)
    result = pointers.pairing_with(record, image)
    if origin.first_recipe and record is None:
        result = replace(result, recipe=origin.first_recipe)
    is_new = record is None or image not in {p.image for p in (record.pairing, *record.previous)}
    if result.revision is None or is_new:
        result = replace(result, revision=origin.revision or result.revision)
    return result


def _paired_by(project: Project, lock: Lock, model: str) -> Recipe | None:
    """The recipe of the model's pairing, where it still exists and is one of the project's."""
    file = lock.models[model].pairing.recipe if model in lock.models else None
    try:
        path = finding.recorded(project, file)
    except UnsafePathError:
        return None
    return recipes.read(project, path).recipe if path else None


def _matching_recipe(project: Project, model: str, names: tuple[str, ...]) -> Recipe | None:
    """The recipe for the model on an image of one of these names; None unless there is exactly one."""
    matching = [
        recipe for _, recipe in recipes.readable(project) if recipe.model == model and recipe.repository in names
    ]
    return matching[0] if len(matching) == 1 else None
