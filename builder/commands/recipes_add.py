"""The ``recipes add`` command: copies recipes of another repository into the project, and the mods that they name."""

from __future__ import annotations

import posixpath
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.commands import mods_add
from builder.copies import address, origin, planning
from builder.definitions.mods import mod_reading
from builder.errors import ConflictError, FileProblemsError, SourceError, UsageError
from builder.events import Message
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from builder.copies.planning import PlannedCopy, Upstream
    from builder.events import Report
    from builder.project import Project
    from builder.sources.git.git_command import Notify


@dataclass(frozen=True)
class RecipeCopies:
    """Recipes to be copied; ``mods`` are those that they name and their repository has, where the project lacks them or
    their origin, as after a kill between the two; ``missing`` are the names that neither has."""

    recipes: tuple[PlannedCopy, ...]
    mods: tuple[PlannedCopy, ...]
    missing: tuple[str, ...]


def plan(project: Project, text: str, name: str | None, report: Report, *, everything: bool) -> RecipeCopies:
    """Plans the copy of the recipe at the address ``text``, under its own name or ``name``; of all recipes there where
    ``everything`` is wanted. Raises what ``mods_add.plan`` does."""
    if name and everything:
        raise UsageError("`--as` names one recipe, and `--all` takes several: give one of them")

    def notify(line: str) -> None:
        report(Message(line))

    upstream = planning.find(project, address.parse(text), notify)
    paths = planning.recipes_at(upstream)
    chosen = paths if everything else (planning.require_one(upstream, "recipe", paths),)
    own_name = name.removesuffix(".yaml") if name else None
    copies = tuple(
        planning.plan(project, upstream, "recipe", path, own_name or planning.name_of(upstream, "recipe", path), notify)
        for path in chosen
    )
    present = mod_reading.names(project)
    named = dict.fromkeys(entry for copy in copies for entry in _mods_named(copy))
    there = {entry: _path_of(upstream, entry) for entry in named}
    lacking = [entry for entry in there if mod_reading.name_of(entry) not in present]
    mods = (
        *_mods(project, upstream, [there[entry] for entry in lacking], notify),
        *_mods_without_origin(project, upstream, [there[entry] for entry in there if entry not in lacking], notify),
    )
    return RecipeCopies(copies, mods, tuple(entry for entry in lacking if not there[entry]))


def _mods(project: Project, upstream: Upstream, paths: Iterable[str], notify: Notify) -> Iterator[PlannedCopy]:
    for path in dict.fromkeys(filter(None, paths)):
        yield planning.plan(project, upstream, "mod", path, posixpath.basename(path), notify)


def _mods_without_origin(
    project: Project, upstream: Upstream, paths: Iterable[str], notify: Notify
) -> Iterator[PlannedCopy]:
    """The mods that are the same there and here, and have no origin: whoever copied them was killed before that."""
    for path in paths:
        if path and not origin.path_of(project, "mod", posixpath.basename(path)).exists():
            with suppress(SourceError, ConflictError):  # the project's own, that cannot be a copy of that one
                yield from (mod for mod in _mods(project, upstream, [path], notify) if not mod.changes)


def _mods_named(recipe: PlannedCopy) -> Iterator[str]:
    """The mods that a recipe names."""
    return map(posixpath.normpath, _listed(recipe, "mods"))


def _listed(recipe: PlannedCopy, key: str) -> Iterator[str]:
    """The entries of a list in a recipe; none where it cannot be read, which `builder recipes check` tells."""
    try:
        data = yaml_file.load(recipe.files[0].content.decode("utf-8-sig"), recipe.name)
    except (FileProblemsError, UnicodeDecodeError):
        return
    entries = data.get(key) if isinstance(data, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, str) and entry.strip():
            yield entry.strip()


def _path_of(upstream: Upstream, entry: str) -> str:
    """The folder of the mod ``entry`` in the repository: from its top, or in ``mods/``; empty where there is none."""
    for folder in (entry, f"mods/{entry}"):
        if any(f"{folder}/{file}" in upstream.paths for file in planning.MOD_FILES):
            return folder
    return ""


def together(copies: RecipeCopies, *, with_mods: bool) -> Sequence[PlannedCopy]:
    """The copies in the order in which they are made: a recipe after the mods that it names."""
    return (*(copies.mods if with_mods else ()), *copies.recipes)


def run(project: Project, planned: Sequence[PlannedCopy]) -> tuple[str, ...]:
    """Makes the copies, those of mods among them; returns notes and raises as ``mods_add.run`` does. Folders of this
    machine that a recipe mounts are among the notes: its server is root there."""
    notes = mods_add.run(project, planned)
    mounts = (
        f"recipes/{each.name} mounts {', '.join(volumes)} of this machine: what it serves is root there"
        for each in planned
        if each.kind == "recipe" and (volumes := tuple(_listed(each, "volumes")))
    )
    return (*notes, *mounts)
