"""In which order the mods of a chain of images are baked, and whether they may be.

Both follow from what they say of each other and of the versions that are pinned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.mods.mod_reading import no_mod
from builder.definitions.package_name import canonical
from builder.errors import FileProblemsError, Location, Problem
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from builder.definitions.mods.mod import Mod


@dataclass(frozen=True)
class Level:
    """One image of a chain: its definition's name, the mods baked into it as listed, and the versions pinned for it and
    the images below, by canonical name."""

    definition: str
    mods: tuple[Mod, ...]
    pinned: Mapping[str, str]


def arrange(levels: Sequence[Level], known: Collection[str]) -> tuple[tuple[Mod, ...], ...]:
    """The mods of each level in the order in which they are baked: after those that they name, else as listed.

    ``levels`` come lowest first, ``known`` are the names of all mods that there are. Raises FileProblemsError with all
    that is wrong: a circle, a name in ``after`` that is none or is baked later, a conflict, a version that does not do.
    """
    wrong = [
        *_wrong_after(levels, known),
        *_conflicts([mod for level in levels for mod in level.mods]),
        *(problem for number in range(len(levels)) for problem in _unmet(levels[: number + 1])),
    ]
    ordered = []
    for level in levels:
        mods, circle = _ordered(level.mods)
        ordered.append(mods)
        if circle:
            said = " after ".join(mod.name for mod in (*circle, circle[0]))
            wrong.append(
                Problem(_at_after(circle[0], circle[1 % len(circle)].name), f"it goes round in a circle: {said}")
            )
    if wrong:
        raise FileProblemsError(tuple(wrong))
    return tuple(ordered)


def _ordered(mods: tuple[Mod, ...]) -> tuple[tuple[Mod, ...], tuple[Mod, ...]]:
    """The mods in order, or those that wait for each other, the first for the second and so on."""
    left = {mod.name: mod for mod in mods}
    done: list[Mod] = []
    while left:
        ready = next((mod for mod in left.values() if left.keys().isdisjoint(mod.after)), None)
        if ready is None:
            return mods, _circle(left)
        done.append(left.pop(ready.name))
    return tuple(done), ()


def _circle(waiting: Mapping[str, Mod]) -> tuple[Mod, ...]:
    seen: list[Mod] = []
    mod = next(iter(waiting.values()))
    while mod not in seen:
        seen.append(mod)
        mod = next(waiting[name] for name in mod.after if name in waiting)
    return tuple(seen[seen.index(mod) :])


def _at_after(mod: Mod, name: str) -> Location:
    return mod.location("after", mod.after.index(name))


def _wrong_after(levels: Sequence[Level], known: Collection[str]) -> Iterator[Problem]:
    baked = {mod.name: number for number, level in enumerate(levels) for mod in level.mods}
    for number, level in enumerate(levels):
        for mod in level.mods:
            for name in mod.after:
                if name not in known:
                    yield Problem(_at_after(mod, name), no_mod(name, known))
                elif baked.get(name, 0) > number:
                    above = levels[baked[name]].definition
                    said = (
                        f"{mod.name} is baked into {level.definition}, and {name} only into {above}, which stands on it"
                    )
                    yield Problem(_at_after(mod, name), said)


def _conflicts(mods: Sequence[Mod]) -> Iterator[Problem]:
    """Each pair that cannot be together, once; a name that is no mod here is that of one that others may bring."""
    names = {mod.name for mod in mods}
    told: set[frozenset[str]] = set()
    for mod in mods:
        for index, name in enumerate(mod.conflicts):
            pair = frozenset((mod.name, name))
            if name in names and pair not in told:
                told.add(pair)
                yield Problem(
                    mod.location("conflicts", index), f"{mod.name} and {name} cannot be in one image; leave one out"
                )


def _unmet(levels: Sequence[Level]) -> Iterator[Problem]:
    """What the mods of the last level require and the versions pinned for it do not give."""
    own = levels[-1]
    packages = (package for level in levels for mod in level.mods for package in mod.packages)
    pinned = {**dict(map(_name_and_version, packages)), **own.pinned}
    for mod in own.mods:
        unfit = excluded(mod, pinned)
        for asked, text in mod.requires.items():
            place = mod.location("requires", asked)
            if canonical(asked) not in pinned:
                also = did_you_mean(canonical(asked), pinned)
                said = f"{own.definition} has no {asked} that is pinned, so nobody can tell whether it is {text}"
                yield Problem(place, f"{said}; {also}" if also else said)
            elif asked in unfit:
                yield Problem(place, f"{mod.name} holds for {asked} {text}, and {asked} {unfit[asked]} is pinned")


def excluded(mod: Mod, pinned: Mapping[str, str]) -> dict[str, str]:
    """The versions of ``pinned`` (by canonical name) that ``mod`` does not hold for, by the name that it requires."""
    if not mod.requires:
        return {}
    from packaging.specifiers import SpecifierSet

    known = {asked: pinned[canonical(asked)] for asked in mod.requires if canonical(asked) in pinned}
    # A version between two releases counts: 0.20.1.dev12+gabc is one that a pinned commit has.
    holds = {asked: SpecifierSet(mod.requires[asked]).contains(known[asked], prereleases=True) for asked in known}
    return {asked: known[asked] for asked in known if not holds[asked]}


def _name_and_version(package: str) -> tuple[str, str]:
    name, _, version = package.partition("==")
    return canonical(name.partition("[")[0]), version
