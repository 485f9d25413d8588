"""What a person should hear before a build, though nothing is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.definitions.mods.mod import Mod
    from builder.definitions.recipes.recipe import Recipe


def remarks(below: tuple[Mod, ...], mods: tuple[Mod, ...], recipe: Recipe | None) -> tuple[str, ...]:
    """What is not pinned or not heeded in the ``mods`` of one image on top of those ``below``, and in its recipe."""
    said = []
    for mod in mods:
        if not mod.described:
            said.append(f"mod {mod.name} has no mod.yaml: what it downloads, if anything, is not pinned")
        elif mod.run and mod.network:
            said.append(f"mod {mod.name} runs {mod.run} with the network: what that downloads is not pinned")
        if mod.packages:
            said.append(f"mod {mod.name} installs {' '.join(mod.packages)}: pinned by version, not by hash")
    said += _overwritten(below, mods)
    if recipe and recipe.ignored_build_args:
        ignored = " ".join(recipe.ignored_build_args)
        said.append(f"{recipe.file}: build_args mean nothing here and are ignored: {ignored}")
    return tuple(said)


def _overwritten(below: tuple[Mod, ...], mods: tuple[Mod, ...]) -> list[str]:
    """The environment variables that a mod sets otherwise than one before it: the last one holds."""
    said = []
    held: dict[str, tuple[str, str]] = {}
    for mod in (*below, *mods):
        for name, value in mod.env.items():
            before, owner = held.get(name, (value, mod.name))
            if before != value and mod in mods:
                said.append(f"mod {mod.name} sets {name} to {value!r} in place of {before!r} of mod {owner}")
            held[name] = (value, mod.name)
    return said
