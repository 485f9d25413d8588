"""The list command: the numbered images and models of images.lock, or those of one target."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.base.errors import ImageStateError, UsageError
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.numbers import status

if TYPE_CHECKING:
    from builder.base.hub_cache import CachedModel
    from builder.base.project import Project
    from builder.evidence.standing import ImageEvidence
    from builder.lab.upgrade_journal import InterruptedUpgrade
    from builder.numbers.workspace import Workspace


def list_images(workspace: Workspace, target: str | None) -> tuple[Lock, status.ImageOverview]:
    """Reads the lock, reduced to what ``target`` names, and the state of its images in the engine.

    Raises UsageError where ``target`` names nothing, LockError where images.lock is lost and so cannot tell.
    """
    lock = (
        lock_file.read_lock(workspace.project.lock)
        if target is None
        else _only(workspace.project, lock_file.read_project_lock(workspace.project), target)
    )
    return lock, status.status_overview(workspace, lock)


def lost_lock(workspace: Workspace) -> str:
    """Tells that images.lock is lost, and how it comes back; empty where it is there, or nothing was built yet."""
    from builder.lock.kinds import TAKE_BACK

    return f"images.lock is {lock_file.MESSAGE}: {TAKE_BACK}" if lock_file.is_lost(workspace.project) else ""


def evidence(
    workspace: Workspace, target: str | None, lock: Lock, overview: status.ImageOverview
) -> dict[ImageName, ImageEvidence]:
    """The evidence of each listed image; empty where the project has none of any."""
    project = workspace.project
    if not project.evidence.is_dir():
        return {}
    from builder.evidence import standing
    from builder.lab import run_sets

    if target is not None:
        lock = lock_file.read_project_lock(project)  # one that is limited to it lacks earlier pairings of other models
    names = [row.name for row in overview.rows]
    return standing.evidence_overview(project, lock, names, workspace.environment, run_sets.present_sets(project))


def interrupted_upgrades(workspace: Workspace, lock: Lock) -> tuple[InterruptedUpgrade, ...]:
    """The interrupted upgrades of models and images in ``lock``, and those whose journal cannot be read."""
    if not workspace.project.upgrading.is_dir():
        return ()
    from builder.lab import upgrade_journal

    upgrades = []
    for each in upgrade_journal.interrupted_upgrades(workspace.project, lock):
        repository = each.upgrade.before.rpartition(":")[0] if each.upgrade else ""
        if each.model in lock.models or repository in {*lock.images, ""}:
            upgrades.append(each)
    return tuple(upgrades)


def cached_models(workspace: Workspace, lock: Lock) -> dict[str, CachedModel]:
    """The part of each model of ``lock`` that the Hugging Face cache of this machine has, by name."""
    from builder.serving import model_revision

    return model_revision.cached(workspace.environment, lock)


def _only(project: Project, lock: Lock, text: str) -> Lock:
    if text in lock.models:
        return _of_model(lock, text)
    repository = status.named_repository(project, lock, text)
    if repository is None:
        from builder.definitions import build_target
        from builder.serving import selection

        if recipe := build_target.find_target(project, text, lock.models).recipe:
            repository = recipe.repository
            with suppress(ImageStateError):  # no image serves it yet
                repository = selection.for_recipe(lock, recipe).image.repository
    if repository is None:
        raise UsageError(f"`{text}` is no model, repository, definition or recipe")
    return replace(
        lock,
        images={name: record for name, record in lock.images.items() if name == repository},
        models={name: model for name, model in lock.models.items() if model.pairing.image.repository == repository},
    )


def _of_model(lock: Lock, name: str) -> Lock:
    """The lock with one model and the images that it is or was paired with."""
    model = lock.models[name]
    paired = {model.pairing.image, *(pairing.image for pairing in model.previous)}
    images = {}
    for repository, record in lock.images.items():
        numbers = {n: image for n, image in record.numbers.items() if ImageName(repository, n) in paired}
        if numbers:
            images[repository] = replace(record, numbers=numbers)
    return replace(lock, images=images, models={name: model})
