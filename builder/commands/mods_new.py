"""The ``mods new`` command: makes a mod that works as it is, with every key of mod.yaml explained, and a test."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from builder import definitions
from builder.definitions.mods import mod_reading
from builder.errors import UsageError
from builder.storage import atomic_folder

if TYPE_CHECKING:
    from builder.project import Project

_SKELETON = Path(definitions.__file__).parent / "skeleton"
_PLACEHOLDER = "@NAME@"
_FOR_EDITORS = "# yaml-language-server: $schema="


def run(project: Project, text: str) -> tuple[Path, ...]:
    """Makes ``mods/NAME``, as a whole or not at all, and returns its files. Raises UsageError for a name that no mod
    may have, or that is taken."""
    name = mod_reading.name_of(text)
    if not mod_reading.NAME.fullmatch(name):
        raise UsageError(
            f"`{name}` is no name for a mod", hint="letters, digits and . _ + - will do, a letter or digit first"
        )
    folder = project.mods / name
    if folder.exists() or name in mod_reading.names(project):
        raise UsageError(f"{project.relative(folder)} is there already", hint="take another name, or change that one")
    unfinished = project.mods / f".{name}.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for source in sorted(_SKELETON.iterdir()):
        text = source.read_text(encoding="utf-8").replace(_PLACEHOLDER, name)
        (unfinished / source.name).write_text(_without_dead_end(text, unfinished), encoding="utf-8")
    atomic_folder.put_in_place(unfinished, folder)
    return tuple(sorted(folder.iterdir()))


def _without_dead_end(text: str, folder: Path) -> str:
    """Removes the line that names the schema for editors, where the project does not have the schema."""
    first, _, rest = text.partition("\n")
    schema = first.removeprefix(_FOR_EDITORS)
    return text if schema == first or (folder / schema).is_file() else rest
