"""Looking for everything wrong in recipes: in their text, their command, and what they name in this project."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions import command, image, mod_reading, recipe
from builder.errors import FileProblemsError, Problem, UsageError

if TYPE_CHECKING:
    from builder.definitions.recipe import Recipe
    from builder.project import Project

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Checked:
    """One recipe file: the recipe where it can be told, all that is wrong in it, and what is only worth saying."""

    file: str
    recipe: Recipe | None
    problems: tuple[Problem, ...]
    remarks: tuple[str, ...] = ()


def check(project: Project, paths: Sequence[str]) -> tuple[Checked, ...]:
    """Every recipe in ``paths``: files, folders and names; without any, the project's own.

    Raises UsageError for a path that is none of these.
    """
    found = dict.fromkeys(file for path in paths or (str(project.recipes),) for file in _files(project, path))
    return tuple(_checked(project, file) for file in found)


def _files(project: Project, text: str) -> list[Path]:
    path = Path(text)
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if path.is_file():
        return [path]
    named = project.recipes / f"{text}.yaml"
    if named.is_file():
        return [named]
    if path == project.recipes:
        return []
    near = difflib.get_close_matches(path.stem, recipe.names(project), n=1)
    raise UsageError(f"{text}: no such file, folder or recipe", hint=f"did you mean {near[0]}?" if near else "")


def _checked(project: Project, path: Path) -> Checked:
    file = project.relative(path)
    try:
        found = recipe.read(project, path)
    except FileProblemsError as error:
        return Checked(file, None, error.problems)
    if found.recipe is None:
        return Checked(file, None, found.problems)
    problems = (*command.problems(found.recipe), *_broken_json(found.recipe), *_unknown(project, found.recipe))
    every = tuple(sorted({*found.problems, *found.written(problems)}))
    return Checked(file, found.recipe, every, remarks(found.recipe))


def _broken_json(checked: Recipe) -> Iterator[Problem]:
    """Options whose value was meant as JSON and is none: vLLM would say so after it has started."""
    if command.problems(checked):
        return
    for option, value in pairwise(command.render(checked, {}).words):
        if option.startswith("--") and value.startswith("{"):
            try:
                json.loads(value)
            except ValueError as error:
                yield Problem(checked.place("command"), f"the value of {option} is no JSON: {error}")


def _unknown(project: Project, checked: Recipe) -> Iterator[Problem]:
    """What the recipe names and the project does not have, and what excludes itself."""
    if image.of_repository(project, checked.repository) is None:
        known = ", ".join(image.repository_of(project, name) for name in image.names(project))
        said = f"container: no image definition makes `{checked.container}`; there are: {known or 'none'}"
        yield Problem(checked.place("container"), said)
    known_mods = mod_reading.names(project)
    for index, asked in enumerate(checked.mods):
        if mod_reading.name_of(asked) not in known_mods:
            near = difflib.get_close_matches(mod_reading.name_of(asked), known_mods, n=1)
            said = f"no mod `{mod_reading.name_of(asked)}` in mods/" + (f"; did you mean `{near[0]}`?" if near else "")
            yield Problem(checked.place("mods", index), said)
    if checked.solo_only and checked.cluster_only:
        yield Problem(checked.place("cluster_only"), "`solo_only` and `cluster_only` exclude each other")


def remarks(checked: Recipe) -> tuple[str, ...]:
    said = []
    if checked.ignored_build_args:
        said.append(f"build_args mean nothing here and are ignored: {' '.join(checked.ignored_build_args)}")
    said += [
        f"env: {name} looks like a secret; leave it out, and set it in your shell"
        for name, value in checked.env.items()
        if value and name.upper().endswith(("TOKEN", "API_KEY", "PASSWORD", "SECRET"))
    ]
    return tuple(said)
