"""The files that lie in a build directory: those of the build, and what else was put there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import FileProblemsError, Location, Problem
from builder.numbered.build_directory import HINT
from builder.plan import layout
from builder.plan.model import StagedFile
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.numbered.build_directory import BuildDirectory


def read(directory: BuildDirectory) -> dict[str, StagedFile]:
    """Reads the files of a build, by path. What does not belong to it is left out: an editor's backup, a ``.git``.

    Raises FileProblemsError for a Dockerfile that is gone, for a file that cannot be read or is too large, and for
    links, pipes and the like, which no build has.
    """
    mods = mods_by_definition(directory)
    files: dict[str, StagedFile] = {}
    wrong: list[Problem] = []
    room = layout.LARGEST_BUILD
    for entry in _below(directory.path):
        path = Path(entry).relative_to(directory.path).as_posix()
        location = Location(f"{directory.shown}/{path}")
        if not entry.is_file(follow_symlinks=False):
            wrong.append(Problem(location, "neither a file nor a folder that can be read; a build has no links"))
        elif layout.belongs(path, mods):
            try:
                content = regular_file.read(Path(entry), min(layout.LARGEST_FILE, room))
                executable = bool(entry.stat(follow_symlinks=False).st_mode & 0o100)
            except OSError as error:
                wrong.append(Problem(location, f"cannot be read: {error.strerror}"))
                continue
            room -= len(content)
            files[path] = StagedFile(content, executable and layout.may_be_executable(path, mods))
    for definition in mods:
        dockerfile = f"{definition}/Dockerfile".removeprefix("/")
        if dockerfile not in files and not wrong:
            wrong.append(Problem(Location(f"{directory.shown}/{dockerfile}"), "it is gone"))
    if wrong:
        raise FileProblemsError(tuple(wrong), hint=HINT)
    return files


def strays(directory: BuildDirectory) -> Iterator[str]:
    """Yields the paths in a build directory that belong to no build."""
    mods = mods_by_definition(directory)
    for entry in _below(directory.path):
        path = Path(entry).relative_to(directory.path).as_posix()
        if not entry.is_file(follow_symlinks=False) or not layout.belongs(path, mods):
            yield path


def mods_by_definition(directory: BuildDirectory) -> Mapping[str, tuple[str, ...]]:
    """The mods of each definition of a build, as ``builder.plan.layout`` takes them."""
    return {part.definition: part.mods for part in directory.parts}


def _below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """All that lies below a folder, in a fixed order, but for the folders that can be read; links are not followed."""
    folders = [os.fspath(folder)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            if entry.is_dir(follow_symlinks=False) and os.access(entry, os.R_OK | os.X_OK):
                folders.append(entry.path)
            else:
                yield entry
