"""The pair command: makes an image serve a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions.recipes import recipe as recipes
from builder.lock import reading
from builder.numbered import images_lock, names, pointers
from builder.numbered.pointers import PointerMove
from builder.serving import model_revision

if TYPE_CHECKING:
    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import ImageName, Lock
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Paired:
    """The pairing of a model. ``move`` is None where it was paired with the image already."""

    model: str
    image: ImageName
    recipe: str | None
    move: PointerMove | None
    differences: tuple[str, ...]


def run(workspace: Workspace, model: str, text: str, *, force: bool) -> Paired:
    """Pairs a model with the image called ``text``; other models stay where they are.

    A model's first pairing takes the recipe for the model and the repository, where there is exactly one. A new pairing
    records the model's revision as a build would (`model_revision.to_record`); an earlier one keeps its own.
    Raises ConflictError for an image that is marked bad, unless ``force``; ImageStateError where the engine
    does not have it; UsageError where images.lock does not.
    """
    lock = reading.of(workspace.project)
    name, _ = names.numbered(workspace.project, lock, text)
    matching = None if model in lock.models else _matching_recipe(workspace.project, model, name)
    recipe = matching or _paired_by(workspace.project, lock, model)
    revision = model_revision.to_record(workspace.environment, model, recipe)
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        moves = _moves(before, model, name)
        pointers.require_allowed(workspace.engine, before, moves, force=force)
        after = pointers.apply(before, moves)
        record = after.models[model]
        pairing = record.pairing
        if matching and model not in before.models:
            pairing = replace(pairing, recipe=matching.file)
        if pairing.revision is None or _is_new(before, model, name):
            pairing = replace(pairing, revision=revision or pairing.revision)
        transaction.commit(after.with_model(model, replace(record, pairing=pairing)))
    move = moves[0] if moves else None
    return Paired(model, name, pairing.recipe, move, pointers.differences(workspace.project, moves))


def _moves(lock: Lock, model: str, name: ImageName) -> tuple[PointerMove, ...]:
    origin = lock.models[model].pairing.image if model in lock.models else None
    return () if origin == name else (PointerMove(model, True, origin, name),)


def _is_new(lock: Lock, model: str, name: ImageName) -> bool:
    """True if the model has never been paired with the image."""
    record = lock.models.get(model)
    return record is None or name not in {pairing.image for pairing in (record.pairing, *record.previous)}


def _paired_by(project: Project, lock: Lock, model: str) -> Recipe | None:
    """The recipe of the model's pairing, where it still exists."""
    file = lock.models[model].pairing.recipe if model in lock.models else None
    path = project.root / file if file else None
    return recipes.read(project, path).recipe if path and path.is_file() else None


def _matching_recipe(project: Project, model: str, name: ImageName) -> Recipe | None:
    """The recipe for the model and the image's repository; None unless there is exactly one."""
    matching = [
        recipe
        for _, recipe in recipes.readable(project)
        if recipe.model == model and recipe.repository == name.repository
    ]
    return matching[0] if len(matching) == 1 else None
