"""Who asks for which mods: image definitions and recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.definitions import image, mod_reading, recipe

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.project import Project

# Stands in for `platform: host`: which mods a definition asks for is the same on all.
_ANY_PLATFORM = "linux/arm64"


@dataclass(frozen=True)
class Use:
    """A definition or recipe called ``name`` asks for ``mods`` in the image of ``definition``."""

    kind: Literal["definition", "recipe"]
    name: str
    definition: str
    mods: tuple[str, ...]


def definitions(project: Project) -> dict[str, ImageDefinition]:
    """All definitions of the project, by name. Raises FileProblemsError for what is wrong in one."""
    return {name: image.load(project, name, _ANY_PLATFORM) for name in image.names(project)}


def uses(project: Project, known: Mapping[str, ImageDefinition]) -> tuple[Use, ...]:
    """What the definitions ``known`` ask for, then what the recipes do whose image one of them makes."""
    made = {one.repository: one.name for one in known.values()}
    found = [Use("definition", name, name, _names(one.mods)) for name, one in known.items()]
    for name in recipe.names(project):
        wanted = recipe.load(project, project.recipes / f"{name}.yaml")
        if wanted.repository in made and not wanted.number:  # a numbered image is there already
            found.append(Use("recipe", name, made[wanted.repository], _names(wanted.mods)))
    return tuple(found)


def _names(asked: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(mod_reading.name_of, asked))
