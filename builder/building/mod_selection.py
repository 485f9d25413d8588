"""The mods that are baked into each image of a chain, and their order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.definitions.mods import mod_reading, script_facts
from builder.errors import FileProblemsError
from builder.plan import mod_rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.definitions.image import ImageDefinition
    from builder.definitions.mods.mod import Mod
    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.pins import Pins
    from builder.project import Project


def load(
    project: Project, chain: Sequence[ImageDefinition], recipe: Recipe | None, further: Sequence[str] = ()
) -> tuple[tuple[Mod, ...], ...]:
    """Loads the mods of each definition of ``chain``, as listed; for the last one those of ``recipe`` and the
    ``further`` ones as well.

    A mod that a parent image has already is not baked again, and one of a recipe that would change nothing in an image
    is left out (``left_out``). Raises what ``require_known`` does for the files, and what
    ``mod_reading.load_all`` does for all mods at once.
    """
    require_known(project, chain, recipe)
    on_top = (*(recipe.mods if recipe else ()), *further)
    own_names: list[list[str]] = []
    for definition in chain:
        requested = (*definition.mods, *(on_top if definition is chain[-1] else ()))
        inherited = {name for names in own_names for name in names}
        own_names.append([name for name in dict.fromkeys(map(mod_reading.name_of, requested)) if name not in inherited])
    mods = {mod.name: mod for mod in mod_reading.load_all(project, (name for names in own_names for name in names))}
    of_recipe = set(map(mod_reading.name_of, recipe.mods)) if recipe else set()
    of_recipe -= set(map(mod_reading.name_of, (*chain[-1].mods, *further)))
    return tuple(
        tuple(mods[name] for name in names if not (name in of_recipe and _changes_nothing(mods[name])))
        for names in own_names
    )


def left_out(project: Project, recipe: Recipe, mods: Sequence[tuple[Mod, ...]]) -> Iterator[str]:
    """A message for each mod of ``recipe`` that is none of ``mods``, since an image with it would be the same: it works
    on the machine while a model is served, or does nothing at all."""
    baked = {mod.name for own in mods for mod in own}
    for name in dict.fromkeys(map(mod_reading.name_of, recipe.mods)):
        if name not in baked and (facts := script_facts.of(mod_reading.load(project, name))):
            yield f"mod {name} is left out: {facts.instead}"


def _changes_nothing(mod: Mod) -> bool:
    facts = script_facts.of(mod)
    return facts is not None and facts.changes_nothing and not mod.described


def require_known(project: Project, chain: Sequence[ImageDefinition], recipe: Recipe | None) -> None:
    """Raises FileProblemsError with the location of every name in the files of ``chain`` and of ``recipe`` that is not
    the name of a mod."""
    problems = [
        problem
        for definition in chain
        for problem in mod_reading.unknown(
            project, definition.mods, partial(image.location, project, definition.name, "mods")
        )
    ]
    problems += mod_reading.unknown(project, recipe.mods, partial(recipe.location, "mods")) if recipe else ()
    if problems:
        raise FileProblemsError(tuple(problems))


def arrange(
    project: Project, chain: Sequence[ImageDefinition], mods: Sequence[tuple[Mod, ...]], pins: Sequence[Pins]
) -> tuple[tuple[Mod, ...], ...]:
    """Returns ``mods`` in the order in which they are baked; ``pins`` are those of each definition of ``chain``.

    Raises what ``mod_rules.arrange`` does.
    """
    if not any(mods):
        return tuple(mods)
    pinned: dict[str, str] = {}
    images: list[mod_rules.ImageMods] = []
    for definition, own, own_pins in zip(chain, mods, pins, strict=True):
        pinned = {**pinned, **mod_rules.pinned_versions(definition, own_pins)}
        images.append(mod_rules.ImageMods(definition.name, own, pinned))
    return mod_rules.arrange(images, mod_reading.names(project))
