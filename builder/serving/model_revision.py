"""Which revision of a model is meant, which one is here, and whether it is still the one that its pairing names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.lock import reading
from builder.storage import huggingface_cache
from builder.storage.huggingface_cache import revision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import Lock, Pairing
    from builder.project import Project
    from builder.storage.huggingface_cache import Held
    from builder.workspace import Workspace

__all__ = ["RevisionChange", "cached", "change", "record", "revision", "to_record"]


@dataclass(frozen=True)
class RevisionChange:
    """A model that is served at another revision than the one its pairing names: ``before`` and ``now``."""

    model: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.model} is at revision {_short(self.now)} now; it was paired at {_short(self.before)}"


def to_record(environ: Mapping[str, str], model: str, recipe: Recipe | None) -> str | None:
    """The revision to write into a new pairing of ``model``: the commit that the cache holds of what the recipe asks
    for, or else the recipe's own word."""
    asked = recipe.revision if recipe and recipe.model == model else None
    return revision(environ, model, asked or huggingface_cache.MAIN) or asked


def change(environ: Mapping[str, str], recipe: Recipe, pairing: Pairing) -> RevisionChange | None:
    """How what ``recipe`` would serve now differs from what ``pairing`` names; None where it does not, or where one of
    the two is not known."""
    if recipe.model is None or pairing.revision is None:
        return None
    now = to_record(environ, recipe.model, recipe)
    before = revision(environ, recipe.model, pairing.revision) or pairing.revision
    if now is None or before == now or pairing.revision == recipe.revision:
        return None
    return RevisionChange(recipe.model, before, now)


def warning(project: Project, environ: Mapping[str, str], recipe: Recipe) -> str:
    """What is worth saying before ``recipe`` is served: that its model is no longer at the revision it is paired at."""
    known = reading.read(project.lock).models.get(recipe.model or "")
    return str(change(environ, recipe, known.pairing) or "") if known else ""


def record(workspace: Workspace, model: str) -> str | None:
    """Fills in the revision of a pairing that was made before the model was here; returns what was written, if any was.

    A revision that stands there stays: a change is for the user to judge.
    """
    if not _lacks_revision(reading.read(workspace.project.lock), model):
        return None
    commit = revision(workspace.environment, model)
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


def cached(environ: Mapping[str, str], lock: Lock) -> dict[str, Held]:
    """What the cache has of the models of ``lock``, by name. The revision is the one that a pairing names where the
    cache has that, and otherwise the one of ``main``."""
    found = {name: one for name in lock.models if (one := huggingface_cache.held(environ, name))}
    for name, one in found.items():
        named = lock.models[name].pairing.revision
        if named and (commit := revision(environ, name, named)):
            found[name] = replace(one, revision=commit)
    return found


def _lacks_revision(lock: Lock, model: str) -> bool:
    return model in lock.models and lock.models[model].pairing.revision is None


def _short(text: str) -> str:
    return text[:7] if huggingface_cache.is_commit(text) else text
