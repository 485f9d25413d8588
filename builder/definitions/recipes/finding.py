"""Recipes found by what the user types: a file, a path without its suffix, or a name. They may lie in folders of
``recipes/``."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from builder.errors import UnsafePathError, UsageError
from builder.project import below

if TYPE_CHECKING:
    from builder.project import Project

SUFFIXES = (".yaml", ".yml")


def files(folder: Path) -> tuple[Path, ...]:
    """The recipe files in ``folder`` and the folders in it, sorted; hidden ones are left out. Links to folders are
    followed within the project: elsewhere may be the whole disk."""
    collected = []
    project, seen = Path(os.path.realpath(folder)).parent, set()
    for path, folders, names in os.walk(folder, followlinks=True):
        real = Path(os.path.realpath(path))
        if real in seen or not real.is_relative_to(project):
            folders[:] = []
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        collected += [Path(path, name) for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]
    return tuple(sorted((file for file in collected if file.is_file()), key=lambda file: file.parts))


def names(project: Project) -> tuple[str, ...]:
    """Names of the project's recipes, sorted: their paths in ``recipes/`` without suffix (``chat``, ``4x/chat``)."""
    paths = (file.relative_to(project.recipes) for file in files(project.recipes))
    return tuple(sorted({str(path.with_suffix("")) for path in paths}))


def name_of(file: str) -> str:
    """The name of the recipe in ``file``, whose path begins in the project's folder."""
    path = PurePath(file)
    return str(path.with_suffix("")).removeprefix("recipes/") if path.suffix in SUFFIXES else file


def recorded(project: Project, file: str | None) -> Path | None:
    """The file of the recipe by which images.lock says that a model is served; None where it is gone. It decides which
    command runs and which folders it gets: so only a file of ``recipes/`` is taken from there.

    Raises UnsafePathError for any other one.
    """
    path = project.root / file if file else None
    if path is None or not path.is_file():
        return None
    if not is_in_recipes(project, path):
        raise UnsafePathError(
            f"images.lock names {file} as a recipe, which is no file of recipes/: it is not followed",
            hint="name the recipe itself, if it is yours: a file may lie anywhere",
        )
    return path


def is_in_recipes(project: Project, path: Path) -> bool:
    """True for a file of ``recipes/``, all links followed. Raises UnsafePathError where that folder leads elsewhere."""
    return path.resolve().is_relative_to(below(project.root, project.recipes).resolve())


def find(project: Project, text: str) -> Path | None:
    """The file of the recipe that ``text`` names, or None. A path counts from the project's folder, then from the
    working directory; a name is looked for in ``recipes/``, then in the folders there.

    Raises UsageError for a name that several recipes in those folders have.
    """
    has_suffix = text.endswith(SUFFIXES)
    paths = [project.root / text, Path(text)] if has_suffix else []
    paths += _spellings(project.recipes / text)
    if "/" in text and not has_suffix:
        paths += [*_spellings(project.root / text), *_spellings(Path(text))]
    existing = next((path for path in paths if path.is_file()), None)
    return existing or _in_folders(project, text)


def _spellings(path: Path) -> list[Path]:
    return [path] if path.name.endswith(SUFFIXES) else [path.parent / f"{path.name}{suffix}" for suffix in SUFFIXES]


def _in_folders(project: Project, text: str) -> Path | None:
    wanted = PurePath(text.removeprefix("./").removeprefix("recipes/")).parts
    if not wanted:
        return None
    matching = []
    for file in files(project.recipes):
        parts = file.relative_to(project.recipes).parts
        without_suffix = (*parts[:-1], file.stem)
        if wanted in (parts[-len(wanted) :], without_suffix[-len(wanted) :]):
            matching.append(file)
    if len(matching) > 1:
        which = ", ".join(project.relative(file) for file in matching)
        raise UsageError(f"`{text}` names several recipes: {which}", hint="name one of them with its folder")
    return matching[0] if matching else None
