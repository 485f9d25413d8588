"""Recipes: ``recipes/NAME.yaml``, the community's version 1: a model, its image and mods, and the serve command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.definitions.reading import SCHEMAS, read_text
from builder.errors import FileProblemsError
from builder.yaml import schema_check, yaml_file

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.recipes.placeholders import Scalar
    from builder.definitions.recipes.repair import RepairedText
    from builder.errors import Location, Problem
    from builder.project import Project

SCHEMA = SCHEMAS / "recipe.schema.json"


@dataclass(frozen=True)
class Recipe:
    """A recipe as read. ``file`` is its path relative to the project's folder, ``text`` the content of the file.
    ``container`` is a definition's repository or a numbered image of it (``vllm-node-tf5:7``). With ``solo_only`` it
    serves on one node only, with ``cluster_only`` on several only. ``volumes`` are mounts of its container
    (``SRC:DST`` or ``SRC:DST:ro``); ``cluster`` is ``ray`` or ``none`` where the recipe says what joins several nodes.
    """

    file: str
    name: str
    description: str
    model: str | None
    revision: str | None
    draft_model: str | None
    container: str
    mods: tuple[str, ...]
    defaults: dict[str, Scalar]
    env: dict[str, Scalar]
    volumes: tuple[str, ...]
    command: str
    cluster: str | None
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
        """The number that ``container`` names, or None."""
        number = self.container.rpartition(":")[2]
        return int(number) if number.isascii() and number.isdecimal() and ":" in self.container else None

    def location(self, *path: str | int) -> Location:
        """The location of a value in the file."""
        return yaml_file.location_of(path, yaml_file.locations(self.text, self.file), self.file)


def names(project: Project) -> tuple[str, ...]:
    """The names of the recipes in the project's own folder, without their ``.yaml``, sorted."""
    return tuple(sorted(path.stem for path in project.recipes.glob("*.yaml")))


@dataclass(frozen=True)
class ParsedRecipe:
    """The result of reading a recipe: its problems, and the recipe itself if the text, or its obvious repair, is one.
    Locations in such a recipe are those of the repaired text."""

    recipe: Recipe | None
    problems: tuple[Problem, ...]
    repaired: RepairedText | None = None

    def written(self, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
        """``problems`` of ``recipe``, at their locations in the file."""
        return self.repaired.written(problems) if self.repaired else problems


def load(project: Project, path: Path) -> Recipe:
    """Reads the recipe in ``path``. Raises UsageError where there is no such file, FileProblemsError with all problems
    of an invalid one."""
    parsed = read(project, path)
    if parsed.recipe is None or parsed.problems:
        raise FileProblemsError(parsed.problems)
    return parsed.recipe


def read(project: Project, path: Path) -> ParsedRecipe:
    """Reads the recipe in ``path``, together with all its problems. Raises UsageError where there is no such file."""
    file = project.relative(path)
    text = read_text(path, file)
    data, problems = _checked(text, file)
    if data is not None and not problems and text.isascii() and "\t" not in text:
        return ParsedRecipe(_recipe(data, text, file), ())
    from builder.definitions.recipes import repair

    repaired = repair.repair(text, file, tuple(schema_check.schema(SCHEMA)["properties"]))
    data, problems = _checked(repaired.text, file)
    recipe = _recipe(data, repaired.text, file) if data is not None and not problems else None
    return ParsedRecipe(recipe, tuple(sorted({*repaired.problems, *repaired.written(problems)})), repaired)


def _checked(text: str, file: str) -> tuple[dict[str, Any] | None, tuple[Problem, ...]]:
    try:
        data = yaml_file.load(text, file)
    except FileProblemsError as error:
        return None, error.problems
    return data, schema_check.problems(data, SCHEMA, text, file)


def _recipe(data: dict[str, Any], text: str, file: str) -> Recipe:
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
        volumes=tuple(data.get("volumes") or ()),
        command=data["command"],
        cluster=data.get("cluster"),
        solo_only=data.get("solo_only", False),
        cluster_only=data.get("cluster_only", False),
        ignored_build_args=tuple(map(str, data.get("build_args") or ())),
        text=text,
    )
