"""The ``mods check`` command: tries the patches of mods on the versions of images.lock.

A mod is tried for each of its uses, and one without a use on every definition that it could be used with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.building import loose_patches, mod_dry_run, mod_selection, mod_usage
from builder.building.mod_dry_run import ModVerdict
from builder.definitions import image_chain
from builder.definitions.mods import mod_reading
from builder.errors import FileProblemsError
from builder.events import Message
from builder.lock import reading
from builder.lock.pins import Pins
from builder.pinning import packages, vendored
from builder.pinning.packages import PinnedDefinition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.building.mod_usage import ModUse
    from builder.definitions.mods.mod import Mod, ModPatch
    from builder.definitions.recipes.recipe import Recipe
    from builder.events import Report
    from builder.lock.model import Lock
    from builder.pinning.packages import Access
    from builder.project import Project


@dataclass(frozen=True)
class _PinnedChain:
    """The chain of a definition as images.lock pins it, each parent before its child, and the ``label`` that the user
    knows it by."""

    project: Project
    access: Access
    label: str
    chain: tuple[PinnedDefinition, ...]

    def find(self, package: str) -> packages.Package | None:
        return packages.pinned(self.access, self.chain, package)

    def verdict(self, mod: Mod, target: str, mods: Sequence[tuple[Mod, ...]], *, requested: bool) -> ModVerdict:
        """Checks ``mod`` after those before it among ``mods``, which are those of each definition of the chain."""
        definitions = [part.definition for part in self.chain]
        excluded = ""
        try:
            mods = mod_selection.arrange(self.project, definitions, mods, [part.pins for part in self.chain])
        except FileProblemsError as error:
            excluded = "; ".join(problem.message for problem in error.problems if problem.location.file == mod.file)
        order = [loose_patches.as_declared(each) for own in mods for each in own]
        with_patches = loose_patches.as_declared(mod)
        tried = mod_dry_run.try_all(order[: order.index(with_patches) + 1], self.find)
        own_tries = tuple(attempt for attempt in tried if attempt.mod == with_patches)
        return ModVerdict(mod, target, own_tries, excluded, requested=requested, is_hint=with_patches != mod)


def run(project: Project, names: Sequence[str], environ: Mapping[str, str], report: Report) -> tuple[ModVerdict, ...]:
    """Checks the mods ``names`` (all where there are none): each after those before it in every recipe and definition
    that uses it, and one without a use alone on every definition that has the packages which it patches.

    Nothing is resolved: verdicts tell what is not pinned. Raises FileProblemsError for bad mods, UsageError for unknown
    ones, LockError for a damaged lock.
    """
    mods = mod_dry_run.load(project, names)
    access = packages.access(project, environ, lambda text: report(Message(text)))
    lock = reading.of(project)
    definitions = mod_usage.definitions(project)
    pinned = {name: _pinned(project, access, lock, name) for name in definitions}
    uses = mod_usage.uses(project, definitions)
    verdicts: list[ModVerdict] = []
    for mod in mods:
        own_uses = [use for use in uses if mod.name in use.mods]
        own = [verdict for use in own_uses for verdict in _in_use(mod, use, pinned[use.definition])]
        if not own_uses:
            own = [verdict for name in definitions for verdict in _alone(mod, name, pinned[name])]
            own = [verdict for verdict in own if verdict.is_hint] or own
        verdicts += own or [ModVerdict(mod, "", missing=_no_target(mod))]
    return tuple(verdicts)


def _in_use(mod: Mod, use: ModUse, pinned: Sequence[_PinnedChain]) -> Iterator[ModVerdict]:
    for chain in pinned:
        definitions = [part.definition for part in chain.chain]
        recipe, missing = _without_missing(chain.project, use.recipe)
        target = f"{chain.label}, recipe {use.name}" if use.recipe else chain.label
        target += f" without {', '.join(missing)}" if missing else ""
        try:
            mods = mod_selection.load(chain.project, definitions, recipe)
        except FileProblemsError as error:
            yield ModVerdict(mod, target, missing=str(error.problems[0]))
            continue
        is_baked = any(mod in own for own in mods)
        yield chain.verdict(mod, target, mods, requested=True) if is_baked else ModVerdict(mod, target)
    if not pinned:
        yield _unpinned(mod, use.definition, requested=True)


def _without_missing(project: Project, recipe: Recipe | None) -> tuple[Recipe | None, tuple[str, ...]]:
    """Returns ``recipe`` with those of its mods that the project has, and the names of the others: a recipe that was
    shared may name mods of its own repository."""
    if recipe is None:
        return None, ()
    existing = mod_reading.names(project)
    missing = tuple(name for name in map(mod_reading.name_of, recipe.mods) if name not in existing)
    present = tuple(text for text in recipe.mods if mod_reading.name_of(text) in existing)
    return (replace(recipe, mods=present) if missing else recipe), missing


def _alone(mod: Mod, definition: str, pinned: Sequence[_PinnedChain]) -> Iterator[ModVerdict]:
    """Checks a mod without a use on a definition that has the packages which it patches."""
    patches = loose_patches.as_declared(mod).patches
    if not patches and not mod.requires:
        return
    for chain in pinned:
        if all(chain.find(patch.package) for patch in mod.patches) and _any_is_pinned(chain, patches):
            of_parents: list[tuple[Mod, ...]] = [() for _ in chain.chain[1:]]
            yield chain.verdict(mod, chain.label, [*of_parents, (mod,)], requested=False)
    if not pinned:
        yield _unpinned(mod, definition, requested=False)


def _any_is_pinned(chain: _PinnedChain, patches: Sequence[ModPatch]) -> bool:
    packages_named = {patch.package for patch in patches}
    return not packages_named or any(chain.find(package) for package in packages_named)


def _no_target(mod: Mod) -> str:
    """The reason why a mod without a use cannot be tried; empty where it has no patches."""
    patched = dict.fromkeys(patch.package for patch in loose_patches.as_declared(mod).patches)
    return f"no definition that is pinned has {' and '.join(patched)}" if patched else ""


def _unpinned(mod: Mod, definition: str, *, requested: bool) -> ModVerdict:
    missing = f"it is not pinned yet: `builder lock {definition}` does that"
    return ModVerdict(mod, definition, missing=missing, requested=requested)


def _pinned(project: Project, access: Access, lock: Lock, name: str) -> tuple[_PinnedChain, ...]:
    """The chain of a definition on each platform for which images.lock pins all of it."""
    by_platform: dict[str, tuple[PinnedDefinition, ...]] = {}
    for platform in lock.pins.get(name, {}):
        chain = image_chain.load(project, name, platform, image_chain.Overrides(platform))
        pins = {part.name: lock.pins_of(part.name, platform) for part in chain}
        if Pins() not in pins.values():
            diffs = {part: vendored.load(project, part, pins[part], {}) for part in pins}
            by_platform[platform] = tuple(PinnedDefinition(part, pins[part.name], diffs[part.name]) for part in chain)
    several = len(by_platform) > 1
    return tuple(
        _PinnedChain(project, access, f"{name} on {platform}" if several else name, chain)
        for platform, chain in by_platform.items()
    )
