"""The ``recipes add`` command: copies recipes of another repository into the project, and the mods that they name; or
takes a file with a recipe that was pasted from a page, and corrects what the page changed."""

from __future__ import annotations

import posixpath
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.commands import mods_add, recipes_check
from builder.comparing import texts
from builder.copies import address, origin, planning
from builder.definitions.mods import known_sources, mod_reading
from builder.definitions.reading import read_text
from builder.definitions.recipes import finding, pasted, recipe
from builder.errors import ConflictError, FileProblemsError, SourceError, UsageError
from builder.events import Message
from builder.storage import atomic_file
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from builder.commands.recipes_check import CheckedRecipe
    from builder.comparing.texts import FileChange
    from builder.copies.planning import PlannedCopy, Upstream
    from builder.events import Report
    from builder.project import Project
    from builder.sources.git.git_command import Notify


@dataclass(frozen=True)
class RecipeCopies:
    """Recipes to be copied; ``mods`` are those that they name and their repository has, where the project lacks them or
    their origin, as after a kill between the two, or has those that came with this program, unedited; ``missing`` are
    the names that neither has, each with the sentence that says how to get it, empty where no place of it is known."""

    recipes: tuple[PlannedCopy, ...]
    mods: tuple[PlannedCopy, ...]
    missing: Mapping[str, str]


@dataclass(frozen=True)
class MendedRecipe:
    """A recipe from a page, as its author typed it: the ``text`` that ``path`` gets. ``change`` is the difference from
    the file as it was pasted, None where nothing had to be corrected. ``replaces`` if that file is in ``recipes/``."""

    path: Path
    text: str
    change: FileChange | None
    replaces: bool


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
        *_mods_in_place(project, upstream, [there[entry] for entry in there if entry not in lacking], notify),
    )
    missing = [mod_reading.name_of(entry) for entry in lacking if not there[entry]]
    return RecipeCopies(copies, mods, {name: known_sources.remedy(project, name) for name in missing})


def _mods(project: Project, upstream: Upstream, paths: Iterable[str], notify: Notify) -> Iterator[PlannedCopy]:
    for path in dict.fromkeys(filter(None, paths)):
        yield planning.plan(project, upstream, "mod", path, posixpath.basename(path), notify)


def _mods_in_place(project: Project, upstream: Upstream, paths: Iterable[str], notify: Notify) -> Iterator[PlannedCopy]:
    """The mods that are here and have no origin: the same there and here, where whoever copied them was killed before
    that; and those that came with this program and nobody edited, which give way to what the repository has."""
    for path in paths:
        if path and not origin.path_of(project, "mod", posixpath.basename(path)).exists():
            with suppress(SourceError, ConflictError):  # the project's own, that cannot be a copy of that one
                yield from (
                    mod for mod in _mods(project, upstream, [path], notify) if mod.is_shipped or not mod.changes
                )


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


def plan_mended(project: Project, file: str, name: str | None) -> MendedRecipe:
    """Corrects the recipe in ``file``, which becomes the recipe ``name``, or of the file's own name. A recipe of the
    project, which its name finds as well, stays where it is. Nothing is written.

    Raises UsageError for a file that cannot be read and for an unfit name, ConflictError where another recipe has it.
    """
    source = Path(file) if Path(file).is_file() else finding.find(project, file) or Path(file)
    shown = project.relative(source)
    before = read_text(source, shown)
    after = pasted.mended(before, recipe.keys())
    change = texts.of_contents(before.encode(), after.encode(), shown) if after != before else None
    if name is None and source.resolve().is_relative_to(project.recipes.resolve()):
        return MendedRecipe(source, after, change, replaces=True)
    own_name = finding.name_of(name or source.name)
    planning.require_name("recipe", own_name)
    path = project.recipes / f"{own_name}.yaml"
    if path.exists():
        raise ConflictError(
            f"recipes/{own_name}.yaml already exists: nothing was written", hint="`--as NAME` gives it another name"
        )
    return MendedRecipe(path, after, change, replaces=False)


def put_mended(project: Project, mended: MendedRecipe) -> CheckedRecipe:
    """Writes a corrected recipe, and checks it. Raises ConflictError where it cannot be written."""
    try:
        atomic_file.make_folder(mended.path.parent)
        atomic_file.write(mended.path, mended.text.encode())
    except OSError as error:
        shown = project.relative(mended.path)
        raise ConflictError(f"{shown} cannot be written: {error.strerror or error}") from None
    return recipes_check.run(project, [str(mended.path)])[0]
