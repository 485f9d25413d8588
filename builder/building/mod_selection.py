"""Which mods are baked into each image of a chain, and in which order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.definitions.image import MAKES
from builder.definitions.mods import mod_reading
from builder.definitions.package_name import canonical
from builder.errors import FileProblemsError
from builder.lock.pins import GitPin
from builder.plan import mod_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.definitions.image import ImageDefinition
    from builder.definitions.mods.mod import Mod
    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.pins import Pins
    from builder.project import Project


def load(
    project: Project, chain: Sequence[ImageDefinition], recipe: Recipe | None, further: Sequence[str] = ()
) -> tuple[tuple[Mod, ...], ...]:
    """The mods of each definition of ``chain``, as listed, and on the last one those of ``recipe`` and the ``further``
    ones.

    What an image below already carries is not baked again. Raises what ``require_known`` does for the files, and what
    ``mod_reading.load_all`` does for all of the mods at once.
    """
    require_known(project, chain, recipe)
    on_top = (*(recipe.mods if recipe else ()), *further)
    wanted: list[list[str]] = []
    for definition in chain:
        asked = (*definition.mods, *(on_top if definition is chain[-1] else ()))
        below = {name for names in wanted for name in names}
        wanted.append([name for name in dict.fromkeys(map(mod_reading.name_of, asked)) if name not in below])
    found = {one.name: one for one in mod_reading.load_all(project, (name for names in wanted for name in names))}
    return tuple(tuple(found[name] for name in names) for names in wanted)


def require_known(project: Project, chain: Sequence[ImageDefinition], recipe: Recipe | None) -> None:
    """Raises FileProblemsError with the place of every name in the files of ``chain`` and of ``recipe`` that is the
    name of no mod."""
    known = mod_reading.names(project)
    wrong = [
        problem
        for one in chain
        for problem in mod_reading.unknown(known, one.mods, partial(image.location, project, one.name, "mods"))
    ]
    wrong += mod_reading.unknown(known, recipe.mods, partial(recipe.location, "mods")) if recipe else ()
    if wrong:
        raise FileProblemsError(tuple(wrong))


def arrange(
    project: Project, chain: Sequence[ImageDefinition], mods: Sequence[tuple[Mod, ...]], pins: Sequence[Pins]
) -> tuple[tuple[Mod, ...], ...]:
    """``mods`` in the order in which they are baked; ``pins`` say what each definition of ``chain`` is pinned to.

    Raises what ``mod_rules.arrange`` does.
    """
    if not any(mods):
        return tuple(mods)
    pinned: dict[str, str] = {}
    levels: list[mod_rules.ImageMods] = []
    for definition, own, held in zip(chain, mods, pins, strict=True):
        pinned = {**pinned, **_versions(definition, held)}
        levels.append(mod_rules.ImageMods(definition.name, own, pinned))
    return mod_rules.arrange(levels, mod_reading.names(project))


def _versions(definition: ImageDefinition, pins: Pins) -> dict[str, str]:
    """What is pinned for one definition, by canonical name: Python, packages, sources and what those are built into."""
    found = {"python": definition.python.version} if definition.python else {}
    packages = pins.python.packages if pins.python else ()
    found.update({canonical(package.name): package.version for package in packages})
    for name, pin in pins.sources.items():
        made = MAKES.get(name, ()) if isinstance(pin, GitPin) else ()
        found.update({canonical(each): pin.version for each in (name, *made)})
    return found
