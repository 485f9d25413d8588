"""The check of mods against images.lock: each where something asks for it, and else wherever it could be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import mod_dry_run, mod_selection, mod_usage
from builder.building.mod_dry_run import ModVerdict
from builder.definitions import image_chain
from builder.errors import FileProblemsError
from builder.events import Message
from builder.lock import reading
from builder.lock.pins import Pins
from builder.pinning import packages, vendored
from builder.pinning.packages import PinnedDefinition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.building.mod_usage import ModUse
    from builder.definitions.mods.mod import Mod
    from builder.events import Report
    from builder.lock.model import Lock
    from builder.pinning.packages import Access
    from builder.project import Project


@dataclass(frozen=True)
class _PinnedChain:
    """A definition as images.lock pins it: its chain, the lowest first, and what people call it."""

    project: Project
    reach: Access
    said: str
    chain: tuple[PinnedDefinition, ...]

    def find(self, package: str) -> packages.Package | None:
        return packages.pinned(self.reach, self.chain, package)

    def verdict(self, one: Mod, target: str, mods: Sequence[tuple[Mod, ...]], *, requested: bool) -> ModVerdict:
        """``one`` after those before it among ``mods``, which are those of each definition of the chain."""
        definitions = [level.definition for level in self.chain]
        excluded = ""
        try:
            mods = mod_selection.arrange(self.project, definitions, mods, [level.pins for level in self.chain])
        except FileProblemsError as error:
            excluded = "; ".join(problem.message for problem in error.problems if problem.location.file == one.file)
        order = [each for level in mods for each in level]
        tried = mod_dry_run.try_all(order[: order.index(one) + 1], self.find)
        return ModVerdict(one, target, tuple(each for each in tried if each.mod == one), excluded, requested=requested)


def run(project: Project, names: Sequence[str], environ: Mapping[str, str], report: Report) -> tuple[ModVerdict, ...]:
    """The mods ``names`` (all where there are none): each after those before it in every recipe and definition that
    asks for it, and one that none asks for alone on every definition that has what it patches.

    Nothing is resolved: what is not pinned is said. Raises FileProblemsError for bad mods, UsageError for unknown ones,
    LockError for a damaged lock.
    """
    wanted = mod_dry_run.load(project, names)
    reach = packages.access(project, environ, lambda text: report(Message(text)))
    lock = reading.of(project)
    known = mod_usage.definitions(project)
    pinned = {name: _pinned(project, reach, lock, name) for name in known}
    uses = mod_usage.uses(project, known)
    found: list[ModVerdict] = []
    for one in wanted:
        own = [use for use in uses if one.name in use.mods]
        verdicts = [verdict for use in own for verdict in _in_use(one, use, pinned[use.definition])]
        if not own:
            verdicts = [verdict for name in known for verdict in _alone(one, name, pinned[name])]
        found += verdicts or [ModVerdict(one, "", missing=_nowhere(one))]
    return tuple(found)


def _in_use(one: Mod, use: ModUse, pinned: Sequence[_PinnedChain]) -> Iterator[ModVerdict]:
    for there in pinned:
        definitions = [level.definition for level in there.chain]
        mods = mod_selection.load(there.project, definitions, use.recipe)
        said = f"{there.said}, recipe {use.name}" if use.recipe else there.said
        yield there.verdict(one, said, mods, requested=True)
    if not pinned:
        yield _unpinned(one, use.definition, requested=True)


def _alone(one: Mod, definition: str, pinned: Sequence[_PinnedChain]) -> Iterator[ModVerdict]:
    """``one`` where nobody asks for it, on a definition that has what it patches."""
    if not one.patches and not one.requires:
        return
    for there in pinned:
        if all(there.find(patch.package) for patch in one.patches):
            below: list[tuple[Mod, ...]] = [() for _ in there.chain[1:]]
            yield there.verdict(one, there.said, [*below, (one,)], requested=False)
    if not pinned:
        yield _unpinned(one, definition, requested=False)


def _nowhere(one: Mod) -> str:
    """Why a mod that nobody asks for is tried nowhere; nothing where there is nothing to try."""
    patched = dict.fromkeys(patch.package for patch in one.patches)
    return f"no definition that is pinned has {' and '.join(patched)}" if patched else ""


def _unpinned(one: Mod, definition: str, *, requested: bool) -> ModVerdict:
    missing = f"it is not pinned yet: `builder lock {definition}` does that"
    return ModVerdict(one, definition, missing=missing, requested=requested)


def _pinned(project: Project, reach: Access, lock: Lock, name: str) -> tuple[_PinnedChain, ...]:
    """What images.lock pins of a definition and all below it, on each platform."""
    found: list[tuple[str, tuple[PinnedDefinition, ...]]] = []
    for platform in lock.pins.get(name, {}):
        chain = image_chain.load(project, name, platform, image_chain.Overrides(platform))
        pins = {one.name: lock.pins_of(one.name, platform) for one in chain}
        if Pins() not in pins.values():
            diffs = {one: vendored.load(project, one, pins[one], {}) for one in pins}
            found.append((platform, tuple(PinnedDefinition(one, pins[one.name], diffs[one.name]) for one in chain)))
    several = len(found) > 1
    return tuple(
        _PinnedChain(project, reach, f"{name} on {platform}" if several else name, chain) for platform, chain in found
    )
