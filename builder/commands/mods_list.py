"""The ``mods list`` command: each mod with its changes, its needs and its users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import mod_usage
from builder.copies import contents, origin
from builder.definitions.mods import mod_reading
from builder.errors import ConflictError, FileProblemsError
from builder.lock import reading

if TYPE_CHECKING:
    from builder.copies.origin import Origin
    from builder.definitions.mods.mod import Mod
    from builder.project import Project


@dataclass(frozen=True)
class ListedMod:
    """A mod with the definitions, recipes and numbered images that use it. ``mod`` is None where its files are wrong,
    which ``problem`` explains. ``origin`` is that of a copy, ``edited`` names the files that were changed since."""

    name: str
    mod: Mod | None
    problem: str
    definitions: tuple[str, ...]
    recipes: tuple[str, ...]
    images: tuple[str, ...]
    origin: Origin | None = None
    edited: tuple[str, ...] = ()


def run(project: Project) -> tuple[ListedMod, ...]:
    """Lists every mod of the project, by name. No engine is asked: the images are those that images.lock records."""
    uses = mod_usage.uses(project, mod_usage.definitions(project))
    images = [
        (f"{repository}:{number}", image.mods)
        for repository, record in reading.of(project).images.items()
        for number, image in record.numbers.items()
    ]
    mods = []
    for name in mod_reading.names(project):
        try:
            loaded, problem = mod_reading.load(project, name), ""
        except FileProblemsError as error:
            loaded, problem = None, error.message
        copied, edited, wrong = _origin(project, name)
        problem = "\n".join(filter(None, (problem, wrong)))
        mods.append(
            ListedMod(
                name=name,
                mod=loaded,
                problem=problem,
                definitions=tuple(use.name for use in uses if not use.recipe and name in use.mods),
                recipes=tuple(use.name for use in uses if use.recipe and name in use.mods),
                images=tuple(image for image, baked in images if name in baked),
                origin=copied,
                edited=edited,
            )
        )
    return tuple(mods)


def _origin(project: Project, name: str) -> tuple[Origin | None, tuple[str, ...], str]:
    """The origin of a copy, the files that were changed since, and the reason why that cannot be told."""
    try:
        copied = origin.read(project, "mod", name)
        files = contents.read(project, "mod", name) if copied else None
    except (ConflictError, FileProblemsError) as error:
        return None, (), error.message
    return copied, contents.edits(files, copied) if copied and files else (), ""


def changes(mod: Mod) -> tuple[str, ...]:
    """The changes that a mod makes, in a few words each: ``2 patches to vllm``, ``run.sh with the network``."""
    patched = dict.fromkeys(patch.package for patch in mod.patches)
    return (
        *([f"packages {', '.join(mod.packages)}"] if mod.packages else []),
        *([_count(len(mod.copies), "file") + _remote(mod)] if mod.copies else []),
        *([f"{_count(len(mod.patches), 'patch', 'patches')} to {', '.join(patched)}"] if mod.patches else []),
        *([f"{mod.run} {'with' if mod.network else 'without'} the network"] if mod.run else []),
        *([f"environment {', '.join(mod.env)}"] if mod.env else []),
    )


def _remote(mod: Mod) -> str:
    hosts = dict.fromkeys(copy.source.split("/")[2].rpartition("@")[2] for copy in mod.copies if copy.is_remote)
    return f" (from {', '.join(hosts)}, pinned)" if hosts else ""


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"
