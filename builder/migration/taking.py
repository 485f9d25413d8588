"""Recipes and mods of a checkout held against what the project has under their names."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.comparing import texts
from builder.copies import contents, origin
from builder.definitions.mods import mod_reading
from builder.definitions.reading import LARGEST_TEXT, read_text
from builder.errors import BuilderError, ConflictError
from builder.migration import checkout as checkouts
from builder.migration import origins
from builder.sources.git.foreign_files import PlainFile
from builder.storage import regular_file
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builder.comparing.texts import FileChange
    from builder.copies.origin import Kind, Origin
    from builder.migration.checkout import Checkout
    from builder.migration.origins import UpstreamCommit
    from builder.project import Project

State = Literal["new", "same", "unrecorded", "shipped", "differs", "unfit"]


@dataclass(frozen=True)
class TakenPart:
    """A recipe or mod of the checkout: the ``files`` that ``name`` would get, and those that are there ``before``, None
    where there is nothing. ``origin`` is None for what is the user's own; an unrecorded one is here already, and where
    it came from is not. One is shipped where it differs from what came with this program, and nobody edited that.
    ``reason`` says why an unfit one is left out."""

    kind: Kind
    name: str
    state: State
    files: tuple[PlainFile, ...] = ()
    before: tuple[PlainFile, ...] | None = None
    origin: Origin | None = None
    reason: str = ""

    def differences(self) -> tuple[FileChange, ...]:
        """The differences between what is here and what the checkout has."""
        old = {file.path: file.content for file in self.before or ()}
        new = {file.path: file.content for file in self.files}
        paths = sorted(path for path in {*old, *new} if old.get(path) != new.get(path))
        return tuple(texts.of_contents(old.get(path), new.get(path), path) for path in paths)


def recipe(project: Project, checkout: Checkout, name: str, upstream: UpstreamCommit | None) -> TakenPart:
    """The recipe ``name`` of a checkout."""
    path = checkout.recipes[name]
    try:
        if not path.resolve().is_relative_to(checkout.root):
            return TakenPart("recipe", name, "unfit", reason="a link that leaves the checkout")
        files = (PlainFile(contents.RECIPE, executable=False, content=regular_file.read(path.resolve(), LARGEST_TEXT)),)
        return _held_against(project, "recipe", name, files, origins.of(upstream, checkout.shown(path), files))
    except OSError as error:
        return TakenPart("recipe", name, "unfit", reason=error.strerror or str(error))
    except BuilderError as error:
        return TakenPart("recipe", name, "unfit", reason=error.message)


def mod(project: Project, checkout: Checkout, path: Path, upstream: UpstreamCommit | None) -> TakenPart:
    """The mod at ``path`` of a checkout."""
    name = name_of_mod(path)
    if not mod_reading.NAME.fullmatch(name):
        return TakenPart("mod", name, "unfit", reason="a mod's name has letters, digits and . _ + - in it")
    try:
        files = checkouts.read_mod(checkout, path)
        return _held_against(project, "mod", name, files, origins.of(upstream, checkout.shown(path), files))
    except BuilderError as error:
        return TakenPart("mod", name, "unfit", reason=error.message)


def name_of_mod(path: Path) -> str:
    """The name that the mod at ``path`` gets: its own, wherever it lies."""
    return path.name.removesuffix(".zip")


def mods_named(checkout: Checkout, name: str) -> tuple[str, ...]:
    """The mods that a recipe of the checkout names, as it writes them; none where it cannot be read."""
    path = checkout.recipes[name]
    try:
        data = yaml_file.load(read_text(path, name), name)
    except BuilderError:
        return ()
    mods = data.get("mods") if isinstance(data, dict) else None
    return tuple(_entries(mods if isinstance(mods, list) else ()))


def put_in_place(project: Project, part: TakenPart) -> None:
    """Writes a part into the project, all of its files or none, and where it came from. Raises ConflictError where
    something else is there than when it was planned."""
    try:
        contents.replace(project, part.kind, part.name, part.before, part.files)
        if part.origin:
            origin.write(project, part.kind, part.name, part.origin)
        else:
            origin.path_of(project, part.kind, part.name).unlink(missing_ok=True)
    except OSError as error:
        raise ConflictError(f"{part.kind}s/{part.name} cannot be written: {error.strerror or error}") from None


def _held_against(
    project: Project, kind: Kind, name: str, files: tuple[PlainFile, ...], own: Origin | None
) -> TakenPart:
    before = contents.read(project, kind, name)
    state: State = "new" if before is None else "same" if _plain(before) == _plain(files) else "differs"
    if own and before == files and origin.read(project, kind, name) is None:
        state = "unrecorded"
    elif state == "differs" and contents.is_shipped(project, kind, name, before):
        state = "shipped"
    return TakenPart(kind, name, state, files, before, own)


def _plain(files: Sequence[PlainFile]) -> list[PlainFile]:
    return sorted((replace(file, executable=False) for file in files), key=lambda file: file.path)


def _entries(mods: Sequence[object]) -> Iterator[str]:
    for entry in mods:
        if isinstance(entry, str) and entry.strip():
            yield posixpath.normpath(entry.strip())
