"""Warnings before a build: things that the user should know though they are no errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions.mods import script_facts

if TYPE_CHECKING:
    from builder.definitions.mods.mod import Mod
    from builder.definitions.recipes.recipe import Recipe


def collect(parent_mods: tuple[Mod, ...], mods: tuple[Mod, ...], recipe: Recipe | None) -> tuple[str, ...]:
    """The warnings about the ``mods`` of one image, after those of its parents, and about its recipe: what is not
    pinned, and what is ignored."""
    messages = []
    for mod in mods:
        if not mod.described:
            messages.append(f"mod {mod.name} has no mod.yaml: what it downloads, if anything, is not pinned")
        elif mod.run and mod.network:
            messages.append(f"mod {mod.name} runs {mod.run} with the network: what that downloads is not pinned")
        if (facts := script_facts.of(mod)) and facts.instead:
            messages.append(f"mod {mod.name} cannot be baked: {facts.instead}")
        if mod.packages:
            messages.append(f"mod {mod.name} installs {' '.join(mod.packages)}: pinned by version, not by hash")
    messages += _overwritten(parent_mods, mods)
    if recipe and recipe.ignored_build_args:
        ignored = " ".join(recipe.ignored_build_args)
        messages.append(f"{recipe.file}: build_args mean nothing here and are ignored: {ignored}")
    return tuple(messages)


def _overwritten(parent_mods: tuple[Mod, ...], mods: tuple[Mod, ...]) -> list[str]:
    """The environment variables that a mod sets to another value than a mod before it; the last one wins."""
    messages = []
    latest: dict[str, tuple[str, str]] = {}
    for mod in (*parent_mods, *mods):
        for name, value in mod.env.items():
            before, owner = latest.get(name, (value, mod.name))
            if before != value and mod in mods:
                messages.append(f"mod {mod.name} sets {name} to {value!r} in place of {before!r} of mod {owner}")
            latest[name] = (value, mod.name)
    return messages
