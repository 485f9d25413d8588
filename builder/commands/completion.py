"""The names that a shell completes on the command line, read from the project's files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions import checkpoint, configuration, image
from builder.definitions.mods import mod_reading
from builder.definitions.recipes import finding
from builder.lock import reading

if TYPE_CHECKING:
    from builder.project import Project


def definitions(project: Project) -> tuple[str, ...]:
    """The image definitions."""
    return image.names(project)


def recipes(project: Project) -> tuple[str, ...]:
    """The recipes, by name."""
    return finding.names(project)


def checkpoints(project: Project) -> tuple[str, ...]:
    """The checkpoint definitions."""
    return checkpoint.names(project)


def mods(project: Project) -> tuple[str, ...]:
    """The mods."""
    return mod_reading.names(project)


def models(project: Project) -> tuple[str, ...]:
    """The models that are paired with an image."""
    return tuple(sorted(reading.read(project.lock).models))


def numbered(project: Project) -> tuple[str, ...]:
    """The numbered images, the newest of each repository first."""
    images = reading.read(project.lock).images
    return tuple(f"{name}:{number}" for name in sorted(images) for number in sorted(images[name].numbers, reverse=True))


def numbers(project: Project, target: str) -> tuple[str, ...]:
    """The numbers of the images that ``target`` may be rolled back to, the newest first."""
    from builder.definitions.target import find
    from builder.numbered import names

    lock = reading.read(project.lock)
    if target in lock.models:
        repository: str | None = lock.models[target].pairing.image.repository
    else:
        repository = names.repository(project, lock, target)
        recipe = None if repository else find(project, target, lock.models).recipe
        repository = recipe.repository if recipe else repository
    images = lock.images.get(repository or "")
    return tuple(str(number) for number in sorted(images.numbers, reverse=True)) if images else ()


def sources(project: Project) -> tuple[str, ...]:
    """The sources that definitions take anew with `--update`: their own, `base` and `python`."""
    from builder.building import mod_usage

    definitions = mod_usage.definitions(project).values()
    own = sorted({name for definition in definitions for name in definition.sources})
    with_python = any(definition.python for definition in definitions)
    return ("base", *own, *(["python"] if with_python else []))


def nodes(project: Project) -> tuple[str, ...]:
    """The nodes of builder.yaml."""
    return tuple(node.name for node in configuration.load(project).nodes)


def profiles(project: Project) -> tuple[str, ...]:
    """The profiles of `builder bench`."""
    return tuple(profile.name for profile in configuration.load(project).bench)


def probes(project: Project) -> tuple[str, ...]:
    """The probes of a served model."""
    from builder.measuring import probing

    return probing.names(project)
