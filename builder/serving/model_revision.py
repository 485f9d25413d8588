"""The revision of a model that is served, and its pairing with an image."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.base import hub_cache
from builder.base.errors import UnsafePathError
from builder.base.hub_cache import revision
from builder.definitions import recipe
from builder.lock import lock_file
from builder.serving import checkpoint_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.base.hub_cache import CachedModel
    from builder.base.project import Project
    from builder.definitions.recipe import Recipe
    from builder.lock.model import ImageName, Lock, Pairing
    from builder.numbers.workspace import Workspace


def to_record(project: Project, environ: Mapping[str, str], model: str, recipe: Recipe | None) -> str | None:
    """Returns the revision to write into a new pairing: the commit that the cache has of the revision that the recipe
    requests, else that revision as written; for a checkpoint the one that was made last (``NAME@REVISION``)."""
    if recipe and recipe.checkpoint and recipe.model == model:
        return checkpoint_weights.latest_weights(project, recipe.checkpoint)
    requested = recipe.revision if recipe and recipe.model == model else None
    return revision(environ, model, requested or hub_cache.MAIN) or requested


def revision_warning(project: Project, environ: Mapping[str, str], lock: Lock, recipe: Recipe) -> str:
    """A line if the model of ``recipe`` is paired at another revision than would be served now; empty if not."""
    model = lock.models.get(recipe.model or "")
    if recipe.model is None or model is None or model.pairing.revision is None or recipe.checkpoint:
        return ""
    now = to_record(project, environ, recipe.model, recipe)
    before = revision(environ, recipe.model, model.pairing.revision) or model.pairing.revision
    if now is None or before == now or model.pairing.revision == recipe.revision:
        return ""
    now, before = (text[:7] if hub_cache.is_commit(text) else text for text in (now, before))
    return f"{recipe.model} is at revision {now} now; it was paired at {before}"


def record_revision(workspace: Workspace, model: str, recipe: Recipe | None = None) -> str | None:
    """Fills in the revision of a pairing that was made before the model was downloaded or its checkpoint was made;
    returns it if it was written. A recorded revision stays: a change is for the user to judge."""
    if not _lacks_revision(lock_file.read_lock(workspace.project.lock), model):
        return None
    if not (commit := to_record(workspace.project, workspace.environment, model, recipe)):
        return None
    from builder.numbers import images_lock

    with images_lock.transaction(workspace) as transaction:
        if not _lacks_revision(transaction.lock, model):
            return None
        paired = transaction.lock.models[model]
        pairing = replace(paired.pairing, revision=commit)
        transaction.commit(transaction.lock.with_model(model, replace(paired, pairing=pairing)))
    return commit


def cached(environ: Mapping[str, str], lock: Lock) -> dict[str, CachedModel]:
    """Returns the models of ``lock`` that the cache has, at the revision that the pairing names if the cache has it,
    otherwise at ``main``."""
    models = {name: cached_model for name in lock.models if (cached_model := hub_cache.find_model(environ, name))}
    for name, cached_model in models.items():
        named = lock.models[name].pairing.revision
        if named and (commit := revision(environ, name, named)):
            models[name] = replace(cached_model, revision=commit)
    return models


def _lacks_revision(lock: Lock, model: str) -> bool:
    return model in lock.models and lock.models[model].pairing.revision is None


# The pairing of a model with an image.


@dataclass(frozen=True)
class PairingSource:
    """The source of a model's pairings: the ``recipe`` that serves it, and the ``revision`` of the model."""

    recipe: Recipe | None
    revision: str | None


def source(
    project: Project,
    environ: Mapping[str, str],
    lock: Lock,
    model: str,
    repository: str,
    adopted: str = "",
    named: Recipe | None = None,
) -> PairingSource:
    """Finds the recipe and the revision for a model's pairing, before the lock is held: the recipe that was ``named``,
    else the one that the pairing records, else the only one for the model and the repository, or for the image
    ``adopted``."""
    serving, recorded = named, lock.models[model].pairing.recipe if model in lock.models else None
    if named is None and recorded:
        with suppress(UnsafePathError):
            path = recipe.recorded(project, recorded)
            serving = recipe.read_recipe(project, path).recipe if path else None
    elif named is None:
        names = (repository, adopted.removesuffix(":latest"))
        of_model = [each for _, each in recipe.readable_recipes(project) if each.model == model]
        matching = [each for each in of_model if each.repository in names]
        serving = matching[0] if len(matching) == 1 else None
    return PairingSource(serving, to_record(project, environ, model, serving))


def pairing(lock: Lock, model: str, image: ImageName, origin: PairingSource) -> Pairing:
    """The pairing of a model with an image; an earlier one with it keeps what it recorded."""
    from builder.numbers import pointers

    record = lock.models.get(model)
    result = pointers.pairing_with(record, image)
    if result.recipe is None and origin.recipe:
        result = replace(result, recipe=origin.recipe.file)
    is_new = record is None or image not in {each.image for each in (record.pairing, *record.previous)}
    if result.revision is None or is_new:
        result = replace(result, revision=origin.revision or result.revision)
    return result
