"""The order in which the mods of a chain of images are baked, and the rules that they must meet.

Both follow from what the mods declare about each other and about the pinned versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.definitions.mods.mod_reading import no_mod
from builder.definitions.package_name import canonical
from builder.errors import FileProblemsError, Location, Problem
from builder.lock.pins import GitPin
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from builder.definitions.image import ImageDefinition
    from builder.definitions.mods.mod import Mod
    from builder.lock.pins import Pins


@dataclass(frozen=True)
class ImageMods:
    """The mods of one image of a chain as listed, the name of its definition, and the versions pinned for it and its
    parents, by canonical name."""

    definition: str
    mods: tuple[Mod, ...]
    pinned: Mapping[str, str]


def pinned_versions(definition: ImageDefinition, pins: Pins) -> dict[str, str]:
    """The versions that are pinned for a definition, by canonical name: Python, packages, sources and the packages
    built from them."""
    versions = {"python": definition.python.version} if definition.python else {}
    packages = (*(pins.base.packages if pins.base else ()), *(pins.python.packages if pins.python else ()))
    versions.update({canonical(package.name): package.version for package in packages})
    for name, pin in pins.sources.items():
        made = PACKAGES_BUILT_FROM.get(name, ()) if isinstance(pin, GitPin) else ()
        versions.update({canonical(package): pin.version for package in (name, *made)})
    return versions


def installed_versions(mods: Iterable[Mod], pinned: Mapping[str, str]) -> dict[str, str]:
    """The versions that ``mods`` install, and those that are ``pinned``, by canonical name."""
    return {**dict(_name_and_version(package) for mod in mods for package in mod.packages), **pinned}


def arrange(levels: Sequence[ImageMods], existing: Collection[str]) -> tuple[tuple[Mod, ...], ...]:
    """The mods of each image in the order in which they are baked: after those that they name, otherwise as listed.

    ``levels`` are the images, parents first; ``existing`` are the names of all mods. Raises FileProblemsError with all
    problems: a cycle, a mod in ``after`` that is unknown or baked later, a conflict, a version outside the range.
    """
    wrong = [
        *_wrong_after(levels, existing),
        *_conflicts([mod for level in levels for mod in level.mods]),
        *(problem for number in range(len(levels)) for problem in _unmet(levels[: number + 1])),
    ]
    ordered = []
    for level in levels:
        mods, cycle = _ordered(level.mods)
        ordered.append(mods)
        if cycle:
            names = " after ".join(mod.name for mod in (*cycle, cycle[0]))
            wrong.append(Problem(_at_after(cycle[0], cycle[1 % len(cycle)].name), f"a cycle: {names}"))
    if wrong:
        raise FileProblemsError(tuple(wrong))
    return tuple(ordered)


def _ordered(mods: tuple[Mod, ...]) -> tuple[tuple[Mod, ...], tuple[Mod, ...]]:
    """The mods in order, and the mods of a cycle, the first after the second and so on, if there is one."""
    left = {mod.name: mod for mod in mods}
    done: list[Mod] = []
    while left:
        ready = next((mod for mod in left.values() if left.keys().isdisjoint(mod.after)), None)
        if ready is None:
            return mods, _cycle(left)
        done.append(left.pop(ready.name))
    return tuple(done), ()


def _cycle(waiting: Mapping[str, Mod]) -> tuple[Mod, ...]:
    seen: list[Mod] = []
    mod = next(iter(waiting.values()))
    while mod not in seen:
        seen.append(mod)
        mod = next(waiting[name] for name in mod.after if name in waiting)
    return tuple(seen[seen.index(mod) :])


def _at_after(mod: Mod, name: str) -> Location:
    return mod.location("after", mod.after.index(name))


def _wrong_after(levels: Sequence[ImageMods], existing: Collection[str]) -> Iterator[Problem]:
    baked = {mod.name: number for number, level in enumerate(levels) for mod in level.mods}
    for number, level in enumerate(levels):
        for mod in level.mods:
            for name in mod.after:
                if name not in existing:
                    yield Problem(_at_after(mod, name), no_mod(name, existing))
                elif baked.get(name, 0) > number:
                    own, child = level.definition, levels[baked[name]].definition
                    message = f"{mod.name} is baked into {own}, and {name} only into {child}, which is built on it"
                    yield Problem(_at_after(mod, name), message)


def _conflicts(mods: Sequence[Mod]) -> Iterator[Problem]:
    """Each pair of mods that conflict, once; a name that is no mod of the chain does no harm."""
    names = {mod.name for mod in mods}
    reported: set[frozenset[str]] = set()
    for mod in mods:
        for index, name in enumerate(mod.conflicts):
            pair = frozenset((mod.name, name))
            if name in names and pair not in reported:
                reported.add(pair)
                yield Problem(
                    mod.location("conflicts", index), f"{mod.name} and {name} cannot be in one image; leave one out"
                )


def _unmet(levels: Sequence[ImageMods]) -> Iterator[Problem]:
    """The requirements of the last image's mods that the versions pinned for it do not meet."""
    own = levels[-1]
    pinned = installed_versions((mod for level in levels for mod in level.mods), own.pinned)
    for mod in own.mods:
        outside = excluded(mod, pinned)
        for name, text in mod.requires.items():
            location = mod.location("requires", name)
            if canonical(name) not in pinned:
                also = did_you_mean(canonical(name), pinned)
                message = f"{mod.name} requires {name} {text}, but {own.definition} pins no {name}"
                yield Problem(location, f"{message}; {also}" if also else message)
            elif name in outside:
                yield Problem(location, f"{mod.name} requires {name} {text}, but {outside[name]} is pinned")


def excluded(mod: Mod, pinned: Mapping[str, str]) -> dict[str, str]:
    """The versions in ``pinned`` (by canonical name) outside the ranges of ``mod``, by the name that it requires."""
    if not mod.requires:
        return {}
    from packaging.specifiers import SpecifierSet

    versions = {name: pinned[canonical(name)] for name in mod.requires if canonical(name) in pinned}
    # Development versions count: a pinned commit has a version such as 0.20.1.dev12+gabc.
    is_met = {name: SpecifierSet(mod.requires[name]).contains(versions[name], prereleases=True) for name in versions}
    return {name: versions[name] for name in versions if not is_met[name]}


def _name_and_version(package: str) -> tuple[str, str]:
    name, _, version = package.partition("==")
    return canonical(name.partition("[")[0]), version
