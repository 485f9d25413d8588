"""Revisions of models: the one to record in a pairing, the one in the cache, and a change from one to the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.lock import reading
from builder.serving import checkpoint_weights
from builder.storage import huggingface_cache
from builder.storage.huggingface_cache import revision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import Lock, Pairing
    from builder.project import Project
    from builder.storage.huggingface_cache import CachedModel
    from builder.workspace import Workspace

__all__ = ["RevisionChange", "cached", "change", "record", "revision", "to_record"]


@dataclass(frozen=True)
class RevisionChange:
    """A model that is served at another revision (``now``) than the one its pairing names (``before``)."""

    model: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.model} is at revision {_short(self.now)} now; it was paired at {_short(self.before)}"


def to_record(project: Project, environ: Mapping[str, str], model: str, recipe: Recipe | None) -> str | None:
    """Returns the revision to write into a new pairing of ``model``: the commit that the cache holds of the revision
    that the recipe requests, or else that revision as the recipe writes it; of a recipe that serves a checkpoint the
    one that was made last (``NAME@REVISION``)."""
    if recipe and recipe.checkpoint and recipe.model == model:
        return checkpoint_weights.latest(project, recipe.checkpoint)
    requested = recipe.revision if recipe and recipe.model == model else None
    return revision(environ, model, requested or huggingface_cache.MAIN) or requested


def change(project: Project, environ: Mapping[str, str], recipe: Recipe, pairing: Pairing) -> RevisionChange | None:
    """Returns the change from the revision that ``pairing`` names to the one that ``recipe`` would serve now; None if
    there is none, or one of the two is not known."""
    if recipe.model is None or pairing.revision is None or recipe.checkpoint:
        return None
    now = to_record(project, environ, recipe.model, recipe)
    before = revision(environ, recipe.model, pairing.revision) or pairing.revision
    if now is None or before == now or pairing.revision == recipe.revision:
        return None
    return RevisionChange(recipe.model, before, now)


def warning(project: Project, environ: Mapping[str, str], recipe: Recipe) -> str:
    """Returns a warning if the model of ``recipe`` is no longer at the revision it is paired at; empty otherwise."""
    model = reading.read(project.lock).models.get(recipe.model or "")
    return str(change(project, environ, recipe, model.pairing) or "") if model else ""


def record(workspace: Workspace, model: str, recipe: Recipe | None = None) -> str | None:
    """Fills in the revision of a pairing that was made before the model was downloaded, or the checkpoint that
    ``recipe`` serves was made; returns it if it was written.

    A revision that is recorded already stays: a change is for the user to judge.
    """
    if not _lacks_revision(reading.read(workspace.project.lock), model):
        return None
    commit = to_record(workspace.project, workspace.environment, model, recipe)
    if not commit:
        return None
    from builder.numbered import images_lock

    with images_lock.transaction(workspace) as transaction:
        if not _lacks_revision(transaction.lock, model):
            return None
        paired = transaction.lock.models[model]
        pairing = replace(paired.pairing, revision=commit)
        transaction.commit(transaction.lock.with_model(model, replace(paired, pairing=pairing)))
    return commit


def cached(environ: Mapping[str, str], lock: Lock) -> dict[str, CachedModel]:
    """Returns the models of ``lock`` that the cache has, by name. Their revision is the one that the pairing names if
    the cache has it, and otherwise that of ``main``."""
    models = {
        name: cached_model for name in lock.models if (cached_model := huggingface_cache.find_model(environ, name))
    }
    for name, cached_model in models.items():
        named = lock.models[name].pairing.revision
        if named and (commit := revision(environ, name, named)):
            models[name] = replace(cached_model, revision=commit)
    return models


def _lacks_revision(lock: Lock, model: str) -> bool:
    return model in lock.models and lock.models[model].pairing.revision is None


def _short(text: str) -> str:
    return text[:7] if huggingface_cache.is_commit(text) else text
