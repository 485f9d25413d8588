"""The build directory in an archive of others: what must be in it, and what must not, before any of it is kept.

A build directory is data, and lies in the project from then on, where `rebuild`, git, editors and Docker find it. So
one with a file or an instruction that no version of this program writes is refused as a whole, and the file named.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from builder.distribution import foreign_files
from builder.errors import FileProblemsError, LockError
from builder.lock import reading
from builder.numbered import bake_targets, build_directory, build_files
from builder.plan import layout
from builder.storage.tar_stream import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.lock.model import ImageName, NumberedImage
    from builder.plan.model import StagedFile


def fault(name: ImageName, image: NumberedImage, build: Mapping[str, StagedFile]) -> str:
    """Returns what is wrong with the build directory of a number, or nothing; ``build`` is empty where it was lost."""
    mods: Mapping[str, tuple[str, ...]] = {}
    for path in build:
        if why := foreign_files.unwelcome(path):
            return f"`{printable(path)}`: {why}"
    if folders := foreign_files.repositories(build):
        return f"`{printable(min(folders))}`: git takes this folder for a repository"
    if image.adopted is None and build:
        try:
            directory = build_directory.parse(Path(), "build", lambda file: _content(build, file))
        except FileProblemsError as error:
            return error.message
        if wrong := next(bake_targets.deviations(directory, image.platform), ""):
            return f"`bake.json`: {wrong} is not as any version of this program writes it"
        mods = build_files.mods_by_definition(directory)
    for path, file in build.items():
        if not (layout.belongs(path, mods) if mods else path in {layout.ADOPTED, layout.RECORD}):
            return f"`{printable(path)}` belongs to no build"
        if file.executable and not layout.may_be_executable(path, mods):
            return f"`{printable(path)}` is executable"
    return "its images.lock is of other images" if _is_of_others(name, image, build, mods.keys()) else ""


def _content(build: Mapping[str, StagedFile], file: str) -> bytes:
    if file not in build:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return build[file].content


def _is_of_others(
    name: ImageName, image: NumberedImage, build: Mapping[str, StagedFile], definitions: Collection[str]
) -> bool:
    """True if the part of images.lock that the build wrote tells of more than this number, and the pins of the
    ``definitions`` that it was built from: the pins are taken up, and all of it is believed on the day that the whole
    file is lost."""
    if layout.RECORD not in build:
        return False
    try:
        record = reading.parse_bytes(build[layout.RECORD].content, layout.RECORD)
    except LockError:
        return False  # nobody believes this one
    pinned = {(definition, platform) for definition, pins in record.pins.items() for platform in pins}
    own = {image.definition, *definitions}
    if any(definition not in own or platform != image.platform for definition, platform in pinned):
        return True
    return any(
        repository != name.repository or numbers.numbers.keys() != {name.number}
        for repository, numbers in record.images.items()
    )
