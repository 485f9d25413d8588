"""Thinking a build through before anything is done: load, pin, plan, and compare with what is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.building import comparison, mod_selection
from builder.definitions import image_chain, target
from builder.definitions.recipes import recipe_problems
from builder.errors import UsageError
from builder.events import Message
from builder.lock import reading
from builder.pinning import chain as chains
from builder.pinning import definition_pins
from builder.pinning import vendored as frozen_diffs
from builder.plan.make import Ingredients, make
from builder.serving import model_revision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.mods.mod import Mod
    from builder.definitions.recipes.recipe import Recipe
    from builder.definitions.target import Target
    from builder.events import Report
    from builder.lock.model import Lock
    from builder.plan.model import Plan
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Request:
    """What the person asked for. ``mods`` and ``models`` come on top of the recipe's own; ``update`` maps the sources
    to resolve anew to the git ref to take instead of the definition's, or None."""

    target: str
    mods: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    update: chains.Update = field(default_factory=dict)
    overrides: image_chain.Overrides = field(default_factory=image_chain.Overrides)
    locked: bool = False
    force: bool = False
    promote: bool = True


@dataclass(frozen=True)
class Prepared:
    """A request thought through: the plan, the diffs frozen for it, and how it compares with what has been built.
    ``revisions`` are those to record, by model, where they are known."""

    request: Request
    plan: Plan
    recipe: Recipe | None
    models: tuple[str, ...]
    revisions: Mapping[str, str]
    lock: Lock
    frozen: Mapping[str, bytes]
    compared: comparison.Comparison

    @property
    def unpaired(self) -> tuple[str, ...]:
        """The models of the request that no image serves yet; none where what is already built is marked bad."""
        already = self.compared.already
        image = self.lock.image(already) if already else None
        if image and image.status == "bad":
            return ()
        return tuple(model for model in self.models if model not in self.lock.models)

    @property
    def to_record(self) -> bool:
        """Whether images.lock lacks something even where nothing is to be built: a pairing, or pins as asked now."""
        return bool(self.unpaired) or any(
            self.lock.pins_of(one.definition.name, one.definition.platform) != one.pins for one in self.plan.chain
        )


def prepare_all(workspace: Workspace, requests: Sequence[Request]) -> tuple[Prepared, ...]:
    """Loads, pins and plans; nothing is written, and no source is asked twice. Raises what the files, the lock or a
    source have to say."""
    from builder.engine.client import versions

    lock = reading.of(workspace.project)
    meant = [target.find(workspace.project, request.target) for request in requests]
    for one in meant:
        _require_a_definition(one)
    recipe_problems.require_none(workspace.project, (one.recipe for one in meant if one.recipe))
    host = versions.platform(workspace.engine)
    wanted = [
        image_chain.load(workspace.project, one.definition, host, request.overrides)
        for one, request in zip(meant, requests, strict=True)
    ]
    for chain, request in zip(wanted, requests, strict=True):
        if request.locked and request.update:
            raise UsageError("`--locked` resolves nothing and `--update` resolves anew: give one of them")
        if request.locked:
            chains.require_covered(lock, chain)
    update = {name: ref for request in requests for name, ref in request.update.items()}
    mods = [
        mod_selection.load(workspace.project, chain, one.recipe, request.mods)
        for one, chain, request in zip(meant, wanted, requests, strict=True)
    ]
    completed = chains.complete(workspace, lock, wanted, update)
    faults = [fault for one in completed.values() for fault in one.faults]
    if faults:
        raise definition_pins.error_of(faults)
    found: list[Prepared] = []
    for request, one, chain, own in zip(requests, meant, wanted, mods, strict=True):
        arranged = mod_selection.arrange(workspace.project, chain, own, [completed[each.name].pins for each in chain])
        prepared = _prepare(workspace, lock, request, one, chain, completed, arranged)
        _try_patches(workspace.project, prepared, workspace.environment, workspace.report)
        found.append(prepared)
        for plan in prepared.plan.chain:
            lock = lock.with_pins(plan.definition.name, plan.definition.platform, plan.pins)
    return tuple(found)


def _require_a_definition(meant: Target) -> None:
    """Raises UsageError for a recipe that asks for one numbered image, which is never built again."""
    if meant.recipe and meant.recipe.number:
        raise UsageError(
            f"{meant.recipe.file} serves {meant.recipe.container}, an image that is there already",
            hint=f"to build another, name the repository alone: `container: {meant.recipe.repository}`",
        )


def _prepare(
    workspace: Workspace,
    lock: Lock,
    request: Request,
    meant: Target,
    chain: chains.Chain,
    completed: Mapping[str, definition_pins.Completed],
    mods: Sequence[tuple[Mod, ...]],
) -> Prepared:
    recipe = meant.recipe
    wanted = tuple(dict.fromkeys([*([recipe.model] if recipe and recipe.model else []), *request.models]))
    plan: Plan | None = None
    frozen: dict[str, bytes] = {}
    for definition, baked in zip(chain, mods, strict=True):
        one, last = completed[definition.name], definition is chain[-1]
        frozen.update(one.frozen)
        diffs = frozen_diffs.load(workspace.project, definition.name, one.pins, frozen)
        ingredients = Ingredients(definition, one.pins, diffs, baked)
        plan = make(ingredients, plan, recipe if last else None, wanted if last else ())
    if plan is None:
        raise ValueError("a chain holds at least one definition")
    compared = comparison.compare(workspace, lock, plan)
    revisions = {
        model: found for model in wanted if (found := model_revision.to_record(workspace.environment, model, recipe))
    }
    return Prepared(request, plan, recipe, wanted, revisions, lock, frozen, compared)


def _try_patches(project: Project, prepared: Prepared, environ: Mapping[str, str], report: Report) -> None:
    """Raises FileProblemsError where a mod's patch does not apply to what is pinned, if anything is to be built; what
    can be reached is tried."""
    plan = prepared.plan
    if prepared.compared.already or not any(mod.patches for mod in plan.mods):
        return
    from builder.building import mod_dry_run
    from builder.pinning import packages

    reach = packages.access(project, environ, lambda text: report(Message(text)))
    levels = []
    for one in plan.chain:
        diffs = frozen_diffs.load(project, one.definition.name, one.pins, prepared.frozen)
        levels.append(packages.Level(one.definition, one.pins, diffs))
    mod_dry_run.require(plan.mods, lambda package: packages.pinned(reach, levels, package), report)
