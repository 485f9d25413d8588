"""Recipes: ``recipes/NAME.yaml``, the community's version 1: a model, its image and mods, and the serve command."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.definitions import required_evidence
from builder.definitions.reading import SCHEMAS, read_text
from builder.definitions.recipes import finding, foreign_format, remarks
from builder.definitions.required_evidence import NOTHING_REQUIRED, RequiredEvidence
from builder.errors import FileProblemsError, Location, Problem, UsageError
from builder.name_patterns import RECIPE_FILE
from builder.yaml import schema_check, syntax_faults, yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.definitions.recipes.placeholders import Scalar
    from builder.project import Project

CHECKPOINT = "checkpoint:"
"""Begins the `model` of a recipe that serves a checkpoint of the project."""

SCHEMA = SCHEMAS / "recipe.schema.json"


@dataclass(frozen=True)
class Recipe:
    """A recipe as read. ``file`` is its path relative to the project's folder, ``text`` the content of the file.
    ``container`` is a definition's repository or a numbered image of it (``vllm-node-tf5:7``). With ``solo_only`` it
    serves on one node only, with ``cluster_only`` on several only. ``volumes`` are mounts of its container
    (``SRC:DST`` or ``SRC:DST:ro``); ``cluster`` is ``ray`` or ``none`` where the recipe says what joins several nodes;
    ``requires`` is the evidence without which no new image serves the model; ``checkpoint`` names the checkpoint of the
    project whose weights are served as the model.
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
    requires: RequiredEvidence = NOTHING_REQUIRED
    checkpoint: str | None = None

    @property
    def repository(self) -> str:
        """The repository that ``container`` names; ``latest`` is its tag where none is written."""
        repository, _, tag = self.container.rpartition(":")
        return repository if repository and (self.number or tag == "latest") else self.container

    @property
    def number(self) -> int | None:
        """The number that ``container`` names, or None."""
        number = self.container.rpartition(":")[2]
        return int(number) if number.isascii() and number.isdecimal() and ":" in self.container else None

    def location(self, *path: str | int) -> Location:
        """The location of a value in the file."""
        return yaml_file.location_of(path, yaml_file.locations(self.text, self.file), self.file)


@dataclass(frozen=True)
class ParsedRecipe:
    """The result of reading a recipe: its problems, and the recipe itself if the text is one. ``notes`` are worth
    knowing, and keep nobody from serving the recipe."""

    recipe: Recipe | None
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()


def readable(project: Project) -> Iterator[tuple[str, Recipe]]:
    """The project's recipes that can be read, by name. What is wrong in the others keeps none of these from working;
    ``builder recipes check`` tells it."""
    for path in finding.files(project.recipes):
        try:
            yield finding.name_of(project.relative(path)), load(project, path)
        except (FileProblemsError, UsageError):
            continue


def load(project: Project, path: Path) -> Recipe:
    """Reads the recipe in ``path``. Raises UsageError where there is no such file, FileProblemsError with all problems
    of an invalid one."""
    parsed = read(project, path)
    if parsed.recipe is None or parsed.problems:
        raise FileProblemsError(parsed.problems)
    if not re.fullmatch(RECIPE_FILE, parsed.recipe.file):
        message = "images.lock takes no name that begins like an option, or has a backslash or control character"
        raise FileProblemsError((Problem(Location(parsed.recipe.file), message),), hint="rename the file")
    return parsed.recipe


def read(project: Project, path: Path) -> ParsedRecipe:
    """Reads the recipe in ``path``, together with all its problems. Raises UsageError where there is no such file."""
    file = project.relative(path)
    # Any other file the user has named, links and all. `..` is taken out of the name first: ../x.yaml is not below.
    is_ours = Path(os.path.abspath(path)).is_relative_to(project.root)  # noqa: PTH100  # a link stays one
    return _with_checkpoint(project, parse(read_text(path, file, project.root if is_ours else None), file))


def parse(text: str, file: str) -> ParsedRecipe:
    """Reads the text of a recipe, which errors call ``file``, together with all its problems."""
    conflict = syntax_faults.conflict(text)
    if conflict:
        return ParsedRecipe(None, (Problem(Location(file, conflict.line), conflict.message),))
    checked = _checked(text, file, keys())
    is_as_typed = checked.recipe and not checked.has_unknown_keys and text.isascii() and "\t" not in text
    if not checked.is_foreign and not is_as_typed:
        from builder.definitions.recipes import pasted

        if changed := pasted.problem(text, file, keys()):
            return ParsedRecipe(None, (changed,))
    return ParsedRecipe(checked.recipe, checked.problems, checked.notes)


def keys() -> tuple[str, ...]:
    """The valid keys of a recipe."""
    return tuple(schema_check.schema(SCHEMA)["properties"])


@dataclass(frozen=True)
class _CheckedText:
    """A text held against the schema of recipes; ``is_foreign`` if it is in the format of another launcher."""

    recipe: Recipe | None
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()
    has_unknown_keys: bool = False
    is_foreign: bool = False


def _checked(text: str, file: str, valid_keys: tuple[str, ...]) -> _CheckedText:
    try:
        data, repetitions = yaml_file.load_shared(text, file)
    except FileProblemsError as error:
        return _CheckedText(None, error.problems)
    problems = schema_check.problems(data, SCHEMA, text, file)
    if not isinstance(data, dict):
        return _CheckedText(None, problems)
    if not problems:
        problems = _nul_in_env(data, text, file)
    if data.get("requires"):
        conditions = required_evidence.problems(data["requires"], ("requires",), text, file)
        problems = tuple(sorted({*problems, *conditions}))
    foreign = foreign_format.problem(data, text, file)
    if foreign:
        return _CheckedText(None, (foreign,), is_foreign=True)
    unknown = tuple(remarks.unknown_keys(data, valid_keys, text, file))
    version = foreign_format.version_note(data, text, file)
    notes = (*remarks.repeated_keys(repetitions, file), *unknown, *((version,) if version else ()))
    return _CheckedText(None if problems else _recipe(data, text, file), problems, notes, bool(unknown))


def _nul_in_env(data: dict[str, Any], text: str, file: str) -> tuple[Problem, ...]:
    """No program can have such a variable."""
    names = [name for name, value in dict(data.get("env") or {}).items() if "\0" in str(value)]
    places = yaml_file.locations(text, file) if names else {}
    return tuple(
        Problem(yaml_file.location_of(("env", name), places, file), f"`{name}`: a variable cannot hold a NUL character")
        for name in names
    )


def _with_checkpoint(project: Project, parsed: ParsedRecipe) -> ParsedRecipe:
    """The recipe with what the definition of its checkpoint says: the model that this is a form of, which ``{model}``
    stands for where the weights do not matter, and the mods that it needs."""
    recipe = parsed.recipe
    if recipe is None or recipe.checkpoint is None:
        return parsed
    from builder.definitions import checkpoint

    try:
        definition = checkpoint.load(project, recipe.checkpoint)
    except (FileProblemsError, UsageError) as error:
        problem = Problem(recipe.location("model"), error.message.splitlines()[0])
        return replace(parsed, recipe=None, problems=(*parsed.problems, problem))
    if not re.search(r"\{model\b", recipe.command):
        problem = Problem(recipe.location("command"), "`{model}` has to stand where the weights of a checkpoint go")
        return replace(parsed, problems=(*parsed.problems, problem))
    listed = {mod.rstrip("/").rpartition("/")[2] for mod in recipe.mods}
    mods = (*recipe.mods, *(f"mods/{mod}" for mod in definition.mods if mod not in listed))
    defaults = {"model": definition.model, **recipe.defaults}
    return replace(parsed, recipe=replace(recipe, model=definition.model, mods=mods, defaults=defaults))


def _recipe(data: dict[str, Any], text: str, file: str) -> Recipe:
    model: str | None = data.get("model")
    checkpoint: str | None = None
    defaults = dict(data.get("defaults") or {})
    if model and model.startswith(CHECKPOINT):
        checkpoint, model = model.removeprefix(CHECKPOINT), None
    if model and not model[0].isalnum():
        # A folder is no model of the Hub: it is not downloaded, and images are not paired with it.
        defaults, model = {"model": model, **defaults}, None
    build_args = data.get("build_args") or ()
    return Recipe(
        file=file,
        name=str(data["name"]),
        description=str(data.get("description") or ""),
        model=model,
        revision=data.get("model_revision"),
        draft_model=data.get("draft_model"),
        container=data["container"].strip(),
        mods=tuple(data.get("mods") or ()),
        defaults=defaults,
        env=dict(data.get("env") or {}),
        volumes=tuple(data.get("volumes") or ()),
        command=data["command"],
        cluster=data.get("cluster"),
        solo_only=bool(data.get("solo_only")),
        cluster_only=bool(data.get("cluster_only")),
        ignored_build_args=(build_args,) if isinstance(build_args, str) else tuple(map(str, build_args)),
        text=text,
        requires=required_evidence.parsed(data.get("requires")),
        checkpoint=checkpoint,
    )
