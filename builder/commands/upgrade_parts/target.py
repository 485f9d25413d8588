"""The target of an upgrade: the recipe or definition that is built, its models, and the image that they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import timestamp
from builder.commands.shared import beside
from builder.definitions import image, image_chain, target
from builder.engine.client import versions
from builder.errors import UsageError
from builder.lock import reading
from builder.lock.model import ImageName
from builder.pinning import definition_pins
from builder.serving import image_selection
from builder.suggestions import did_you_mean
from builder.upgrading.steps import Upgrade

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import Lock
    from builder.workspace import Workspace


def begun(workspace: Workspace, text: str, update: Mapping[str, str | None], *, older: bool = False) -> Upgrade:
    """The upgrade that ``text`` means; with ``older``, packages may go back to older versions. Raises UsageError where
    it names nothing, or nothing tells how to build it."""
    project = workspace.project
    lock = reading.of(project)
    recipe, models, before = _subject(workspace, lock, text)
    definition = target.definition_of(project, target.find(project, recipe.file if recipe else text))
    chain = image_chain.load(project, definition, versions.platform(workspace.engine))
    every = {name: None for part in chain for name in definition_pins.names(part)}
    if unknown := [name for name in update if name not in every]:
        suggestion = did_you_mean(unknown[0], every, code=True)
        raise UsageError(
            f"{definition} has no source `{unknown[0]}`", hint=suggestion or f"its sources: {', '.join(every)}"
        )
    return Upgrade(
        target=recipe.file if recipe else definition,
        models=models,
        update=dict(update) or every,
        before=str(before) if before else "",
        started=timestamp.now(),
        served=beside.server_of(workspace, recipe) is not None,
        older=older,
    )


def _subject(workspace: Workspace, lock: Lock, text: str) -> tuple[Recipe | None, tuple[str, ...], ImageName | None]:
    """The recipe that ``text`` means, if any, with the models to upgrade and the image that they have now."""
    if text in lock.models:
        recipe = image_selection.select(workspace.project, lock, text).recipe
        return recipe, (text,), lock.models[text].pairing.image
    named = target.find(workspace.project, text, lock.models)
    by_name = named.recipe or _recipe_of_definition(workspace, lock, named.definition)
    repository = by_name.repository if by_name else image.repository_of(workspace.project, named.definition or "")
    record = lock.images.get(repository)
    before = ImageName(repository, record.current) if record and record.current else None
    models: tuple[str, ...] = (by_name.model,) if by_name and by_name.model else ()
    if models and models[0] in lock.models:
        before = lock.models[models[0]].pairing.image
    if named.recipe is None and before:
        models = lock.models_on(before) or models
    return by_name, models, before


def recipe_of_target(workspace: Workspace, upgrade: Upgrade) -> Recipe | None:
    return target.find(workspace.project, upgrade.target).recipe


def recipe_of(workspace: Workspace, upgrade: Upgrade, model: str) -> Recipe | None:
    """The recipe by which a model is served: that of the target, or of the model's own pairing."""
    recipe = recipe_of_target(workspace, upgrade)
    if recipe and recipe.model == model:
        return recipe
    lock = reading.of(workspace.project)
    return image_selection.select(workspace.project, lock, model).recipe if model in lock.models else None


def _recipe_of_definition(workspace: Workspace, lock: Lock, definition: str | None) -> Recipe | None:
    """The recipe of the models that a definition's current image serves; None where it serves none. Raises UsageError
    where they have several."""
    repository = image.repository_of(workspace.project, definition or "")
    record = lock.images.get(repository)
    models = lock.models_on(ImageName(repository, record.current)) if record and record.current else ()
    recipes = {}
    for model in models:
        recipe = image_selection.select(workspace.project, lock, model).recipe
        recipes[tuple(sorted(recipe.mods))] = recipe
    if len(recipes) > 1:
        raise UsageError(
            f"{definition} serves {', '.join(models)}, by recipes with different mods", hint="upgrade one of the models"
        )
    return next(iter(recipes.values()), None)
