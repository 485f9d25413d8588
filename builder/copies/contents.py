"""The files of a mod or recipe in the project, as they are compared with those of a repository, and put in place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from builder.copies import origin
from builder.definitions.mods import mod_files
from builder.definitions.reading import LARGEST_TEXT
from builder.errors import ConflictError
from builder.shipped import planning as shipped_files
from builder.sources.git.foreign_files import PlainFile
from builder.storage import atomic_file, atomic_folder, file_lock, regular_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.copies.origin import Kind, Origin
    from builder.project import Project

# Left by tools in a working folder: no part of a copy, and gone with the folder that is replaced.
_LITTER = frozenset({".git", ".DS_Store", "__MACOSX", "__pycache__"})

RECIPE = "recipe.yaml"  # a recipe is one file, whatever it is called here and there


def place_of(project: Project, kind: Kind, name: str) -> Path:
    """The folder of a mod, or the file of a recipe."""
    if kind == "mod":
        return project.mods / name
    other = project.recipes / f"{name}.yml"
    return other if other.exists() else project.recipes / f"{name}.yaml"


def read(project: Project, kind: Kind, name: str) -> tuple[PlainFile, ...] | None:
    """The files of a mod or recipe, sorted by path; None where there is none. Raises ConflictError where something
    else has its place, or a file cannot be read."""
    place = place_of(project, kind, name)
    shown = project.relative(place.parent) + f"/{place.name}"
    if kind == "mod" and place.with_name(f"{name}.zip").exists():
        raise ConflictError(f"{shown}.zip is there", hint="remove it, or copy under another name with `--as`")
    if place.is_symlink():
        raise ConflictError(f"{shown} is a link", hint="remove it, or copy under another name with `--as`")
    if not place.exists():
        return None
    try:
        if kind == "recipe":
            return (PlainFile(RECIPE, executable=False, content=regular_file.read(place, LARGEST_TEXT)),)
        paths = (Path(parent, name) for parent, folders, names in _walk(place) for name in names)
        return tuple(sorted((_file(path, path.relative_to(place).as_posix()) for path in paths), key=lambda f: f.path))
    except OSError as error:
        raise ConflictError(f"{shown} cannot be read: {error.strerror}") from None


def is_shipped(project: Project, kind: Kind, name: str, files: Sequence[PlainFile] | None) -> bool:
    """True if ``files``, those of a mod or recipe of the project, came with this program, were not copied from anywhere
    since, and nobody edited them: what the user brings may take their place. Raises FileProblemsError for a damaged
    record of what came with this program."""
    if files is None or origin.path_of(project, kind, name).exists():
        return False
    place = place_of(project, kind, name).relative_to(project.root).as_posix()
    contents = {place if kind == "recipe" else f"{place}/{file.path}": file.content for file in files}
    return shipped_files.is_unedited(project, place, contents)


def edits(files: Sequence[PlainFile], copied: Origin) -> tuple[str, ...]:
    """The files that are not as they were copied, those that are missing now included."""
    now = origin.digests(files)
    return tuple(sorted(path for path in {*now, *copied.files} if now.get(path) != copied.files.get(path)))


def replace(
    project: Project, kind: Kind, name: str, before: Sequence[PlainFile] | None, files: Sequence[PlainFile]
) -> None:
    """Puts ``files`` in place of ``before``, all of them or none: whoever is killed leaves the old copy or the new one.

    Raises ConflictError where something else than ``before`` is there by now.
    """
    project.state.mkdir(parents=True, exist_ok=True)
    with file_lock.locked(project.state / "copies.lock"):
        if read(project, kind, name) != (None if before is None else tuple(before)):
            raise ConflictError(f"{kind} {name} has changed meanwhile", hint="run this again")
        place = place_of(project, kind, name)
        fresh = place.with_name(f".{place.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)  # of a process that was killed
        if before is not None and tuple(before) == tuple(files):
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "recipe":
            atomic_file.write(place, files[0].content)
            return
        _write(fresh, files)
        atomic_folder.replace(fresh, place)


def _write(folder: Path, files: Sequence[PlainFile]) -> None:
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)


def _walk(folder: Path) -> list[tuple[str, list[str], list[str]]]:
    walked = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _LITTER)
        walked.append((parent, folders, [name for name in names if name not in _LITTER]))
    return walked


def _file(path: Path, shown: str) -> PlainFile:
    content = regular_file.read(path.resolve(), mod_files.LARGEST_FILE)
    return PlainFile(shown, bool(path.stat().st_mode & 0o100), content)
