"""Plans of copies: a repository's mod or recipe held against what the project has under that name."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.comparing import texts
from builder.copies import contents, origin
from builder.copies.origin import Origin
from builder.definitions.mods import mod_reading
from builder.errors import ConflictError, SourceError, UsageError
from builder.sources.git import credentials, foreign_files
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.comparing.texts import FileChange
    from builder.copies.address import CopyAddress
    from builder.copies.origin import Kind
    from builder.project import Project
    from builder.sources.git.foreign_files import PlainFile
    from builder.sources.git.git_command import Notify

MOD_FILES = ("run.sh", "mod.yaml")
_RECIPE_SUFFIXES = (".yaml", ".yml")
_RECIPE_NAME = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._+-]*/)*[A-Za-z0-9][A-Za-z0-9._+-]*")
_MOST_LISTED = 40


@dataclass(frozen=True)
class Upstream:
    """A repository at the commit that ``address.ref`` is now, with the paths of all its files."""

    address: CopyAddress
    commit: str
    paths: tuple[str, ...]

    @property
    def url(self) -> str:
        """The address of the repository without credentials."""
        return credentials.split(self.address.url).url


@dataclass(frozen=True)
class PlannedCopy:
    """A copy to be made: the files and the origin that ``name`` gets. ``before`` are the files that it replaces, None
    where there is nothing; ``previous`` is their origin, None where they are no copy; ``edited`` names those that were
    changed since they were copied; ``is_shipped`` says that they came with this program, and that nobody edited them.
    ``changes`` are the differences."""

    kind: Kind
    name: str
    origin: Origin
    files: tuple[PlainFile, ...]
    before: tuple[PlainFile, ...] | None
    previous: Origin | None
    edited: tuple[str, ...]
    is_shipped: bool
    changes: tuple[FileChange, ...]

    @property
    def replaces(self) -> bool:
        """True if files that are there change."""
        return self.before is not None and bool(self.changes)

    @property
    def loses(self) -> bool:
        """True if it replaces something that is nowhere else: edits, or what was never copied."""
        return self.replaces and not self.is_shipped and (self.previous is None or bool(self.edited))


def find(project: Project, address: CopyAddress, notify: Notify) -> Upstream:
    """Looks up a repository. Raises SourceError where it does not answer, or has no such ref."""
    commit = foreign_files.find_commit(project.mirrors, address.url, address.ref, notify)
    paths = foreign_files.paths(project.mirrors, address.url, commit, notify)
    return Upstream(address, commit, paths)


def mods_at(upstream: Upstream) -> tuple[str, ...]:
    """The paths of the mods at the address or below it, sorted; raises SourceError where there is none."""
    folders = {posixpath.dirname(path) for path in upstream.paths if posixpath.basename(path) in MOD_FILES}
    outermost = {folder for folder in folders if not any(_is_below(folder, other) for other in folders - {folder})}
    within = tuple(sorted(folder for folder in outermost if _is_at(folder, upstream.address.path)))
    if not within:
        raise _nothing_there(upstream, "mod", sorted(outermost))
    return within


def recipes_at(upstream: Upstream) -> tuple[str, ...]:
    """The paths of the recipes at the address or below it, sorted; of a whole repository those in ``recipes/``. Raises
    SourceError where there is none."""
    wanted = upstream.address.path
    everything = [path for path in upstream.paths if path.endswith(_RECIPE_SUFFIXES)]
    recipes = [path for path in everything if "recipes" in path.split("/")[:-1]] or everything
    exact = [path for path in everything if path in {wanted, *(f"{wanted}{suffix}" for suffix in _RECIPE_SUFFIXES)}]
    within = exact or [path for path in (everything if wanted else recipes) if _is_at(path, wanted)]
    if not within:
        raise _nothing_there(upstream, "recipe", recipes)
    return tuple(sorted(within))


def require_one(upstream: Upstream, kind: Kind, paths: Sequence[str]) -> str:
    """Returns the only one of ``paths``. Raises UsageError with all of them where there are several."""
    if len(paths) == 1:
        return paths[0]
    url = upstream.url
    listed = "\n".join(f"  {path}" for path in paths[:_MOST_LISTED])
    more = f"\n  and {len(paths) - _MOST_LISTED} more" if len(paths) > _MOST_LISTED else ""
    hint = f"name one: `builder {kind}s add {url}//{paths[0]}`; `--all` takes all of them"
    raise UsageError(f"{url} has {len(paths)} {kind}s there:\n{listed}{more}", hint=hint)


def name_of(upstream: Upstream, kind: Kind, path: str) -> str:
    """The name that a mod or recipe at ``path`` gets: its own; below a folder that was asked for, its path there."""
    if kind == "mod":
        url = upstream.url.rstrip("/").removesuffix(".git")
        return posixpath.basename(path) or re.split(r"[/:]", url)[-1]
    folder = upstream.address.path
    below = path.startswith(f"{folder}/") if folder else path.startswith("recipes/")
    inside = path[len(folder or "recipes") + 1 :] if below else posixpath.basename(path)
    return posixpath.splitext(inside)[0]


def require_name(kind: Kind, name: str) -> None:
    """Raises UsageError for a text that is no name for a mod or recipe."""
    pattern = mod_reading.NAME if kind == "mod" else _RECIPE_NAME
    if not pattern.fullmatch(name):
        raise UsageError(f"`{name}` is no name for a {kind}", hint="`--as NAME` gives it one of letters, digits and -")


def plan(project: Project, upstream: Upstream, kind: Kind, path: str, name: str, notify: Notify) -> PlannedCopy:
    """Reads the mod or recipe at ``path`` of a repository, and what the project has as ``name``.

    Raises UsageError for an unfit name, SourceError for files that are not copied, ConflictError where something that
    is no folder of a mod has its place.
    """
    require_name(kind, name)
    files = foreign_files.read(project.mirrors, upstream.address.url, upstream.commit, path, notify)
    if kind == "recipe":
        files = (replace(files[0], path=contents.RECIPE, executable=False),)
    before, previous = contents.read(project, kind, name), origin.read(project, kind, name)
    own = Origin(upstream.url, path, upstream.address.ref, upstream.commit, origin.digests(files))
    edited = contents.edits(before, previous) if before is not None and previous else ()
    is_shipped = contents.is_shipped(project, kind, name, before)
    changes = tuple(_changes(before or (), files))
    return PlannedCopy(kind, name, own, files, before, previous, edited, is_shipped, changes)


def put_in_place(project: Project, planned: PlannedCopy) -> None:
    """Makes a copy as planned, and records where it came from.

    The copy first: killed between the two, the next update finds nothing to change but the record.
    """
    try:
        contents.replace(project, planned.kind, planned.name, planned.before, planned.files)
    except OSError as error:
        where = f"{planned.kind}s/{planned.name}"
        raise ConflictError(f"{where} cannot be written: {error.strerror or error}") from None
    if planned.origin != planned.previous:
        origin.write(project, planned.kind, planned.name, planned.origin)


def _changes(before: Sequence[PlainFile], after: Sequence[PlainFile]) -> Iterator[FileChange]:
    old, new = {file.path: file for file in before}, {file.path: file for file in after}
    for path in sorted({*old, *new}):
        left, right = old.get(path), new.get(path)
        if left and right and left.content == right.content:
            if left.executable != right.executable:
                yield texts.of_mode(path, executable=right.executable)
            continue
        yield texts.of_contents(left.content if left else None, right.content if right else None, path)


def _is_at(path: str, wanted: str) -> bool:
    return not wanted or path == wanted or _is_below(path, wanted)


def _is_below(path: str, folder: str) -> bool:
    return bool(folder) and path.startswith(f"{folder}/")


def _nothing_there(upstream: Upstream, kind: Kind, others: Sequence[str]) -> SourceError:
    wanted = upstream.address.path
    where = f"{wanted} of {upstream.url}" if wanted else upstream.url
    suggestion = did_you_mean(wanted, others) if others else ""
    listed = ", ".join(others[:_MOST_LISTED])
    hint = suggestion or (f"there are: {listed}" if others else "is it another branch? `@REF` at the end names it")
    return SourceError(f"there is no {kind} at {where} ({upstream.commit[:12]})", hint=hint)
