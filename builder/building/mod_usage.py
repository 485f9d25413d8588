"""The mods that image definitions and recipes use."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.definitions.mods import mod_reading
from builder.definitions.recipes import recipe
from builder.errors import FileProblemsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.definitions.image import ImageDefinition
    from builder.definitions.recipes.recipe import Recipe
    from builder.project import Project

# Stands in for `platform: host`: a definition has the same mods on all platforms.
_ANY_PLATFORM = "linux/arm64"


@dataclass(frozen=True)
class ModUse:
    """The ``mods`` that the definition ``name``, or the ``recipe`` of that name, puts into the image of
    ``definition``."""

    name: str
    definition: str
    mods: tuple[str, ...]
    recipe: Recipe | None = None


def definitions(project: Project) -> dict[str, ImageDefinition]:
    """Loads the definitions of the project that can be read, by name; ``doctor``, and whatever uses one of the others,
    tells what is wrong in it."""
    loaded = {}
    for name in image.names(project):
        with suppress(FileProblemsError, UsageError):
            loaded[name] = image.load(project, name, _ANY_PLATFORM)
    return loaded


def uses(project: Project, definitions: Mapping[str, ImageDefinition]) -> tuple[ModUse, ...]:
    """The uses by ``definitions``, then those by the recipes whose image one of them makes, as far as these can be
    read."""
    by_repository = {definition.repository: name for name, definition in definitions.items()}
    all_uses = [ModUse(name, name, _names(definition.mods)) for name, definition in definitions.items()]
    for name, loaded in recipe.readable(project):
        if loaded.repository in by_repository and not loaded.number:  # a numbered image exists already
            all_uses.append(ModUse(name, by_repository[loaded.repository], _names(loaded.mods), loaded))
    return tuple(all_uses)


def _names(mods: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(mod_reading.name_of, mods))
