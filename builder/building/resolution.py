"""The first step of a build: the request becomes definitions, mods and pins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.building import mod_downloads, mod_selection, mod_versions
from builder.definitions import image_chain, target
from builder.definitions.mods import mod_problems
from builder.definitions.recipes import recipe_problems
from builder.engine import base_image
from builder.engine.client import versions
from builder.errors import SourceError, UsageError
from builder.events import Message
from builder.lock import reading
from builder.lock.pins import BasePin
from builder.pinning import chain as chains
from builder.pinning import definition_pins, older_versions, refetching
from builder.sources import environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.building.request import BuildRequest
    from builder.definitions.image import ImageDefinition
    from builder.definitions.mods.mod import Mod
    from builder.definitions.recipes.recipe import Recipe
    from builder.definitions.target import Target
    from builder.lock.model import Lock
    from builder.workspace import Workspace

_MOST_NAMES = 3  # in an error; all of them are reported


@dataclass(frozen=True)
class ResolvedTarget:
    """A target with everything that goes into its image: the definitions of its chain, the base first, and the mods of
    each in the order in which they are baked. ``models`` are the recipe's own and those requested."""

    recipe: Recipe | None
    models: tuple[str, ...]
    chain: chains.Chain
    mods: tuple[tuple[Mod, ...], ...]


@dataclass(frozen=True)
class Resolution:
    """All targets of a build, the pins of their definitions by name, and images.lock as it was read."""

    targets: tuple[ResolvedTarget, ...]
    pins: Mapping[str, definition_pins.ResolvedPins]
    lock: Lock


def resolve(workspace: Workspace, request: BuildRequest) -> Resolution:
    """Reads the targets' files, and resolves what is not pinned; no source is queried twice, and nothing is written.

    Raises FileProblemsError with all problems in the files, LockError where images.lock is damaged or, for a ``locked``
    request, does not cover what is requested, SourceError where a source cannot be resolved, and UsageError.
    """
    project = workspace.project
    lock = reading.of(project)
    # A model stands for the recipe that serves it, as everywhere.
    by_model = {model: paired.pairing.recipe for model, paired in lock.models.items()}
    targets = [target.find(project, by_model.get(text) or text) for text in request.targets]
    for named in targets:
        _require_a_definition(named)
    definitions = [target.definition_of(project, named) for named in targets]
    recipe_problems.require_buildable(project, (named.recipe for named in targets if named.recipe))
    overrides = image_chain.Overrides(request.platform, request.settings)
    platform = versions.platform(workspace.engine)
    all_chains = [image_chain.load(project, definition, platform, overrides) for definition in definitions]
    if request.locked and request.update:
        raise UsageError("`--locked` resolves nothing and `--update` resolves anew: give one of them")
    if request.locked:
        for chain in all_chains:
            chains.refuse_stale(lock, chain)
    all_mods = [
        mod_selection.load(project, chain, named.recipe, request.mods)
        for named, chain in zip(targets, all_chains, strict=True)
    ]
    mod_problems.require_templates({mod.name: mod for mods in all_mods for own in mods for mod in own}.values())
    for named, mods in zip(targets, all_mods, strict=True):
        for message in mod_selection.left_out(project, named.recipe, mods) if named.recipe else ():
            workspace.report(Message(message))
    pins = _complete_pins(workspace, lock, all_chains, request)
    resolved = []
    for named, chain, mods in zip(targets, all_chains, all_mods, strict=True):
        of_chain = [pins[definition.name].pins for definition in chain]
        ordered = mod_selection.arrange(project, chain, mods, of_chain)
        if any(mod.packages for own in ordered for mod in own):
            mod_versions.check(chain, ordered, of_chain)
        with_files = mod_downloads.fetch(workspace, ordered)
        resolved.append(ResolvedTarget(named.recipe, _models(named.recipe, request), chain, with_files))
    return Resolution(tuple(resolved), pins, lock)


def _complete_pins(
    workspace: Workspace, lock: Lock, all_chains: Sequence[chains.Chain], request: BuildRequest
) -> dict[str, definition_pins.ResolvedPins]:
    """The pins of all definitions by name, with the patches that they name."""
    pins = chains.resolve_missing(workspace, lock, all_chains, request.update)
    if faults := [fault for completed in pins.values() for fault in completed.faults]:
        raise definition_pins.error_of(faults)
    if request.local_base:
        pins = _on_local_bases(workspace, all_chains, pins)
    say_older(workspace, lock, all_chains, pins, request)
    return {name: _with_patches(workspace, named, pins[name]) for name, named in _definitions(all_chains).items()}


def _definitions(all_chains: Sequence[chains.Chain]) -> dict[str, ImageDefinition]:
    return {definition.name: definition for chain in all_chains for definition in chain}


def _on_local_bases(
    workspace: Workspace, all_chains: Sequence[chains.Chain], pins: Mapping[str, definition_pins.ResolvedPins]
) -> dict[str, definition_pins.ResolvedPins]:
    """``pins`` with each base of a registry replaced by this engine's copy of the same name. Raises SourceError where
    the registry gives that name after all, where this engine has no copy, and for a base whose packages are pinned with
    it: the packages of the copy may be others."""
    local = dict(pins)
    for definition in {chain[0].name: chain[0] for chain in all_chains}.values():
        own = local[definition.name]
        pin = own.pins.base
        if pin is None or pin.resolved.startswith(base_image.LOCAL):
            continue
        resolved = base_image.resolve(workspace.engine, pin.requested, definition.platform)
        if not resolved.startswith(base_image.LOCAL) or definition.base_sources:
            raise SourceError(f"this engine's copy of {pin.requested} does not take the place of the pinned base")
        local[definition.name] = replace(own, pins=replace(own.pins, base=BasePin(pin.requested, resolved)))
    return local


def say_older(
    workspace: Workspace,
    lock: Lock,
    all_chains: Sequence[chains.Chain],
    pins: Mapping[str, definition_pins.ResolvedPins],
    request: BuildRequest,
) -> None:
    """Reports each package and source that goes back to an older version. Raises SourceError where the request does not
    allow that."""
    settings = environment.read(workspace.environment)
    older: list[older_versions.OlderVersion] = []
    for definition in _definitions(all_chains).values():
        before, after = lock.pins_of(definition.name, definition.platform), pins[definition.name].pins
        if before != after:
            older += older_versions.between(definition, before, after, request.update, settings)
    for each in older:
        workspace.report(Message(str(each)))
    if older and not request.older:
        names = ", ".join(each.name for each in older[:_MOST_NAMES])
        more = f" and {len(older) - _MOST_NAMES} more" if len(older) > _MOST_NAMES else ""
        raise SourceError(
            f"{names}{more} would go back to older versions", hint="`--allow-older` takes the older versions"
        )


def _with_patches(
    workspace: Workspace, definition: ImageDefinition, resolved: definition_pins.ResolvedPins
) -> definition_pins.ResolvedPins:
    """``resolved`` with the patches that images.lock pins and the project does not have. Raises LockError."""
    fetched = refetching.fetch(workspace.project, definition, resolved.pins, resolved.patches, workspace.report)
    return replace(resolved, patches={**resolved.patches, **fetched}) if fetched else resolved


def _models(recipe: Recipe | None, request: BuildRequest) -> tuple[str, ...]:
    own = [recipe.model] if recipe and recipe.model else []
    return tuple(dict.fromkeys([*own, *request.models]))


def _require_a_definition(named: Target) -> None:
    """Raises UsageError for a recipe that names a numbered image, which is never built again."""
    if named.recipe and named.recipe.number:
        raise UsageError(
            f"{named.recipe.file} serves {named.recipe.container}, an image that is there already",
            hint=f"to build another, name the repository alone: `container: {named.recipe.repository}`",
        )
