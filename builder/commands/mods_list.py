"""The list of mods: what each changes, what it needs, and who uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import mod_usage
from builder.definitions.mods import mod_reading
from builder.errors import FileProblemsError
from builder.lock import reading

if TYPE_CHECKING:
    from builder.definitions.mods.mod import Mod
    from builder.project import Project


@dataclass(frozen=True)
class ListedMod:
    """A mod with the definitions, recipes and numbered images that use it; without ``mod`` where its files are wrong,
    which ``problem`` then says."""

    name: str
    mod: Mod | None
    problem: str
    definitions: tuple[str, ...]
    recipes: tuple[str, ...]
    images: tuple[str, ...]


def run(project: Project) -> tuple[ListedMod, ...]:
    """Every mod of the project, by name. No engine is asked: the images are those that images.lock records."""
    uses = mod_usage.uses(project, mod_usage.definitions(project))
    images = [
        (f"{repository}:{number}", image.mods)
        for repository, held in reading.of(project).images.items()
        for number, image in held.numbers.items()
    ]
    found = []
    for name in mod_reading.names(project):
        try:
            loaded, problem = mod_reading.load(project, name), ""
        except FileProblemsError as error:
            loaded, problem = None, error.message
        found.append(
            ListedMod(
                name=name,
                mod=loaded,
                problem=problem,
                definitions=tuple(use.name for use in uses if not use.recipe and name in use.mods),
                recipes=tuple(use.name for use in uses if use.recipe and name in use.mods),
                images=tuple(image for image, mods in images if name in mods),
            )
        )
    return tuple(found)


def changes(one: Mod) -> tuple[str, ...]:
    """What a mod changes, in a few words each: ``2 patches to vllm``, ``run.sh with the network``."""
    patched = dict.fromkeys(patch.package for patch in one.patches)
    return (
        *([f"packages {', '.join(one.packages)}"] if one.packages else []),
        *([_count(len(one.copies), "file")] if one.copies else []),
        *([f"{_count(len(one.patches), 'patch', 'patches')} to {', '.join(patched)}"] if one.patches else []),
        *([f"{one.run} {'with' if one.network else 'without'} the network"] if one.run else []),
        *([f"environment {', '.join(one.env)}"] if one.env else []),
    )


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or f'{one}s'}"
