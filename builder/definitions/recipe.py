"""Recipes: ``recipes/NAME.yaml``, the community's version 1: a model, its image and mods, and the serve command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder import yamlfile
from builder.definitions.reading import read_checked, read_text

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.placeholders import Value
    from builder.errors import Place
    from builder.project import Project


@dataclass(frozen=True)
class Recipe:
    """A recipe as read. ``file`` is its path from the project's folder, ``text`` what the file holds. ``container`` is
    a definition's repository, or one numbered image of it (``vllm-node-tf5:7``). ``solo_only`` and ``cluster_only`` say
    on how many machines it serves."""

    file: str
    name: str
    description: str
    model: str | None
    revision: str | None
    draft_model: str | None
    container: str
    mods: tuple[str, ...]
    defaults: dict[str, Value]
    env: dict[str, Value]
    command: str
    solo_only: bool
    cluster_only: bool
    ignored_build_args: tuple[str, ...]
    text: str = field(repr=False, compare=False)

    @property
    def repository(self) -> str:
        """The repository that ``container`` names."""
        return self.container.rpartition(":")[0] if self.number else self.container

    @property
    def number(self) -> int | None:
        """The number that ``container`` names, where it does."""
        number = self.container.rpartition(":")[2]
        return int(number) if number.isascii() and number.isdecimal() and ":" in self.container else None

    def place(self, *path: str | int) -> Place:
        """Where a value stands in the file."""
        return yamlfile.place_of(path, yamlfile.places(self.text, self.file), self.file)


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
        draft_model=data.get("draft_model"),
        container=data["container"],
        mods=tuple(data.get("mods") or ()),
        defaults=dict(data.get("defaults") or {}),
        env=dict(data.get("env") or {}),
        command=data["command"],
        solo_only=data.get("solo_only", False),
        cluster_only=data.get("cluster_only", False),
        ignored_build_args=tuple(map(str, data.get("build_args") or ())),
        text=read_text(path, file),
    )
