"""Recipes: ``recipes/NAME.yaml``, the community's version 1: a model, its image and mods, and the serve command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.reading import read_checked

if TYPE_CHECKING:
    from pathlib import Path

    from builder.project import Project

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Recipe:
    """A recipe as read. ``file`` is its path from the project's folder, ``container`` a definition's repository."""

    file: str
    name: str
    description: str
    model: str | None
    revision: str | None
    container: str
    mods: tuple[str, ...]
    defaults: dict[str, Value]
    env: dict[str, Value]
    command: str
    ignored_build_args: tuple[str, ...]


def names(project: Project) -> tuple[str, ...]:
    """The names of the recipes in the project's own folder, without their ``.yaml``, sorted."""
    return tuple(sorted(path.stem for path in project.recipes.glob("*.yaml")))


def load(project: Project, path: Path) -> Recipe:
    """The recipe in ``path``. Raises UsageError or FileProblemsError with every problem found."""
    file = project.relative(path)
    data = read_checked(path, file, "recipe")
    return Recipe(
        file=file,
        name=data["name"],
        description=data.get("description", ""),
        model=data.get("model"),
        revision=data.get("model_revision"),
        container=data["container"],
        mods=tuple(data.get("mods") or ()),
        defaults=dict(data.get("defaults") or {}),
        env=dict(data.get("env") or {}),
        command=data["command"],
        ignored_build_args=tuple(map(str, data.get("build_args") or ())),
    )
