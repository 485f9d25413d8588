"""The files that a project gets: all that come with this program, or those for one kind of machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from builder.definitions import checkpoint, image, image_chain, serving
from builder.definitions.mods import mod_reading
from builder.definitions.recipes import recipe as recipes
from builder.lock import reading
from builder.lock.model import Lock
from builder.shipped import source
from builder.shipped.source import ShippedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.project import Project

Contents = Literal["all", "spark", "cpu", "minimal"]
CONTENTS: tuple[Contents, ...] = get_args(Contents)
# Files that a project may have lines of its own in: what is missing is added at their end.
LINES = (".gitignore", ".gitattributes")
_PARTS = "dockerfiles/_parts"
_GPUS = {"spark": "all", "cpu": "none"}
# Those with which this repository itself is developed.
_OWN_SCRIPTS = frozenset({"scripts/setup", "scripts/test"})


@dataclass(frozen=True)
class Selection:
    """The definitions and mods of a project by name, its recipes by file, of which the ones whose image takes least to
    make come first; its ``files`` but for images.lock, and the ``pins`` that images.lock begins with."""

    contents: Contents
    definitions: tuple[str, ...]
    mods: tuple[str, ...]
    recipes: tuple[str, ...]
    files: dict[str, ShippedFile]
    pins: Lock


def select(contents: Contents) -> Selection:
    """Selects what ``contents`` stands for: ``spark`` and ``cpu`` are the definitions that need a GPU or none, the
    recipes on their images, and the mods that either name; ``minimal`` has what definitions are written with."""
    shipped = source.project()
    names = tuple(name for name in image.names(shipped) if _is_for(shipped, name, contents))
    repositories = {image.repository_of(shipped, name) for name in names}
    every = [recipe for _, recipe in recipes.readable(shipped) if recipe.repository in repositories]
    every.sort(key=lambda recipe: (_effort(shipped, recipe.repository), recipe.file))
    mods = {mod_reading.name_of(mod) for recipe in every for mod in recipe.mods}
    mods |= {mod_reading.name_of(mod) for name in names for mod in image.load(shipped, name, "linux/arm64").mods}
    if contents == "all":
        mods = set(mod_reading.names(shipped))
    checkpoints = {recipe.checkpoint for recipe in every if recipe.checkpoint}
    if contents == "all":
        checkpoints = set(checkpoint.names(shipped))
    weights = [f"checkpoints/{name}" for name in sorted(checkpoints)]
    files = _files(shipped, names, sorted(mods), [recipe.file for recipe in every], weights)
    # Images that were built in a checkout are not those of a project that begins.
    pins = reading.read(shipped.lock).pins
    return Selection(
        contents=contents,
        definitions=names,
        mods=tuple(sorted(mods)),
        recipes=tuple(recipe.file for recipe in every),
        files={file.path: file for file in files},
        pins=Lock({name: pins[name] for name in names if name in pins}),
    )


def _is_for(shipped: Project, name: str, contents: Contents) -> bool:
    return contents == "all" or serving.of(shipped, name).gpus == _GPUS.get(contents)


def _effort(shipped: Project, repository: str) -> int:
    """The effort of making an image of ``repository``: none where others build it, wheels, or hours of compiling."""
    name = image.of_repository(shipped, repository)
    chain = image_chain.load(shipped, name, "linux/arm64") if name else ()
    if any(definition.git_sources for definition in chain):
        return 2
    return 1 if any(definition.wheel_sources for definition in chain) else 0


def _files(
    shipped: Project, names: tuple[str, ...], mods: list[str], files: list[str], weights: list[str]
) -> Iterator[ShippedFile]:
    for folder in (_PARTS, *(f"dockerfiles/{name}" for name in names), *(f"mods/{name}" for name in mods), *weights):
        yield from source.below(shipped.root, folder)
    for file in files:
        yield ShippedFile(file, (shipped.root / file).read_bytes())
    if names:
        yield from (script for script in source.below(shipped.root, "scripts") if script.path not in _OWN_SCRIPTS)
    yield from source.schemas()
    yield ShippedFile("builder.yaml", source.skeleton("builder.yaml"))
    yield ShippedFile(".gitignore", source.skeleton("gitignore"))
    yield ShippedFile(".gitattributes", source.skeleton("gitattributes"))
