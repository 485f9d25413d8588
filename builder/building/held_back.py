"""The pointers that a build leaves where they are: evidence that they require is not recorded, or its proof failed.

A build records its number first and without them, then its proof, and moves what nothing is missing for. What is
recorded later (by `prove`, `probe` or `bench`) moves no pointer: `promote` and `pair` do, and say what is missing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.building.request import HeldPointer
from builder.evidence import gate, requirements
from builder.lock.model import Pairing
from builder.numbered import images_lock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.building.planning import PlannedImage
    from builder.building.request import BuildRequest
    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import ImageName, Lock
    from builder.project import Project
    from builder.workspace import Workspace


def models(project: Project, planned: PlannedImage) -> tuple[str, ...]:
    """The models of a build that require evidence of its image. Raises FileProblemsError for a bad builder.yaml."""
    return tuple(
        model for model in planned.models if requirements.required(project, model, _recipe_for(planned, model))
    )


def missing(
    workspace: Workspace, lock: Lock, planned: PlannedImage, name: ImageName, model: str
) -> tuple[requirements.MissingEvidence, ...]:
    """The parts that ``name`` lacks of the evidence that a model of the build requires."""
    recipe = _recipe_for(planned, model)
    return requirements.missing(workspace.project, lock, name, model, recipe=recipe, environ=workspace.environment)


def move(
    workspace: Workspace, planned: PlannedImage, name: ImageName, request: BuildRequest, models_held: Iterable[str]
) -> tuple[HeldPointer, ...]:
    """Pairs ``name`` with the models of its build ``models_held`` back, and makes it current as requested, where
    nothing is missing, or the request says that they move anyway; returns what stays."""
    waiting: list[HeldPointer] = []
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        for model in models_held:
            paired = lock.models.get(model)
            lacking = missing(workspace, lock, planned, name, model)
            if lacking and not request.promote_anyway:
                stays = str(paired.pairing.image) if paired else ""
                failed = any(each.failed for each in lacking)
                waiting.append(HeldPointer(model, True, stays, told(lacking, name, model), failed))
                continue
            note = f"{gate.FORCED}{request.promote_anyway}" if lacking else ""
            recipe = planned.recipe.file if planned.recipe else None
            lock = lock.with_pairing(model, Pairing(name, recipe, planned.revisions.get(model), note=note))
            if note:
                lock = lock.with_image(name, replace(lock.images[name.repository].numbers[name.number], note=note))
        repository = lock.images[name.repository]
        if (request.promote or repository.current is None) and not waiting:
            lock = lock.with_repository(name.repository, repository.with_current(name.number))
        elif request.promote and waiting:
            stays = f"{name.repository}:{repository.current}" if repository.current else ""
            failed = any(each.failed for each in waiting)
            waiting.append(HeldPointer(f"{name.repository}:latest", False, stays, (), failed))
        transaction.commit(lock)
    return tuple(waiting)


def told(lacking: Iterable[requirements.MissingEvidence], name: ImageName, model: str) -> tuple[tuple[str, str], ...]:
    """Each missing part as text, with the command that brings it."""
    return tuple((str(each), requirements.command(each, name, model)) for each in lacking)


def _recipe_for(planned: PlannedImage, model: str) -> Recipe | None:
    """The recipe of the build, where it is the one that serves ``model``."""
    return planned.recipe if planned.recipe and planned.recipe.model == model else None
