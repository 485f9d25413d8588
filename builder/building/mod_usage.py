"""Who asks for which mods: image definitions and recipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.definitions.mods import mod_reading
from builder.definitions.recipes import recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.definitions.image import ImageDefinition
    from builder.definitions.recipes.recipe import Recipe
    from builder.project import Project

# Stands in for `platform: host`: which mods a definition asks for is the same on all.
_ANY_PLATFORM = "linux/arm64"


@dataclass(frozen=True)
class Use:
    """The definition ``name``, or the ``recipe`` of that name, asks for ``mods`` in the image of ``definition``."""

    name: str
    definition: str
    mods: tuple[str, ...]
    recipe: Recipe | None = None


def definitions(project: Project) -> dict[str, ImageDefinition]:
    """All definitions of the project, by name. Raises FileProblemsError for what is wrong in one."""
    return {name: image.load(project, name, _ANY_PLATFORM) for name in image.names(project)}


def uses(project: Project, known: Mapping[str, ImageDefinition]) -> tuple[Use, ...]:
    """What the definitions ``known`` ask for, then what the recipes do whose image one of them makes."""
    made = {one.repository: one.name for one in known.values()}
    found = [Use(name, name, _names(one.mods)) for name, one in known.items()]
    for name in recipe.names(project):
        wanted = recipe.load(project, project.recipes / f"{name}.yaml")
        if wanted.repository in made and not wanted.number:  # a numbered image is there already
            found.append(Use(name, made[wanted.repository], _names(wanted.mods), wanted))
    return tuple(found)


def _names(asked: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(mod_reading.name_of, asked))
