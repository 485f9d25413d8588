"""Copies mods and recipes from other repositories. A copy is identical to the files in its original repository."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from builder.base import records, yaml_file
from builder.base.errors import ConflictError, FileProblemsError, Location, Problem, SourceError, UsageError
from builder.base.files import fresh_folder, locked, read_plain_file, replace_folder, write_atomically
from builder.base.values import dataclass, replace
from builder.base.words import did_you_mean, sha256_of
from builder.definitions import mod
from builder.definitions.fields import LARGEST_TEXT, read_text
from builder.definitions.mod import PlainFile, read_plain_files
from builder.lab import changes
from builder.moving import shipped as shipped_files
from builder.sources import foreign_files, git, mirror

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.lab.changes import FileChange
    from builder.sources.git import Notify


DEFAULT_BRANCH = "HEAD"
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
_SCP = re.compile(r"(?:[^/@:]+@)?[^/:]+:(?!//)")
_PAGE = re.compile(r"(?P<url>https?://[^/]+/(?:[^/]+/)+?[^/]+?)(?:/-)?/(?:tree|blob)/(?P<ref>[^/]+)(?:/(?P<path>.*))?")
_FORM = "GIT-URL[//FOLDER][@REF]: https://github.com/OWNER/REPOSITORY//mods/NAME@main"


@dataclass(frozen=True)
class CopyAddress:
    """A path in the repository ``url`` at ``ref``: a branch, a tag, a commit, or the default branch (``HEAD``)."""

    url: str
    path: str
    ref: str


def parse_address(text: str) -> CopyAddress:
    """Parses an address that a user typed; ``//`` ends the repository. The address of a page
    (``https://github.com/O/R/tree/REF/mods/NAME``) cannot name a branch with a slash. Raises UsageError if invalid."""
    if page := _PAGE.fullmatch(text):
        return CopyAddress(page["url"], _path(unquote(page["path"] or ""), text), page["ref"])
    start = _AUTHORITY.match(text) or _SCP.match(text)
    host, rest = (start[0], text[start.end() :]) if start else ("", text)
    repository, double, path = rest.partition("//")
    at, ref = "", ""
    if double:
        path, at, ref = path.partition("@")
    elif host or not Path(repository).is_dir():  # a folder of this machine may have an @ in its name
        folder, at, ref = repository.rpartition("@")
        repository, ref = (folder, ref) if at else (repository, "")
    url = f"{host}{repository}" if host else str(Path(repository).expanduser().absolute())
    if text.startswith("-") or "::" in text.partition("/")[0] or not repository.strip("/"):
        raise UsageError(f"`{text}` is not the address of a repository", hint=_FORM)
    if at and not ref:
        raise UsageError(f"`{text}`: no branch, tag or commit follows the @", hint=_FORM)
    return CopyAddress(url, _path(path, text), ref or DEFAULT_BRANCH)


def _path(text: str, whole: str) -> str:
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise UsageError(f"`{whole}`: a path in the repository must not contain `..`", hint=_FORM)
    return "/".join(parts)


# The origin of a copy: ``mods/NAME.source`` or ``recipes/NAME.source``. This file is beside the copy, so that the copy
# has the same files, and the same content hash, as in its original repository.

Kind = Literal["mod", "recipe"]
SUFFIX = ".source"
_HEAD = "# Where {kind}s/{name} came from. `builder {kind}s update {name}` writes this file; commit it with the copy.\n"


@dataclass(frozen=True)
class Origin:
    """The origin of a copy: ``path`` in the repository ``url`` at ``commit``, to which ``ref`` pointed then. ``files``
    has the digest of each copied file by path."""

    url: str
    path: str
    ref: str
    commit: str
    files: Mapping[str, str]

    @property
    def content(self) -> str:
        """SHA-256 over the names, execute bits and bytes of all files."""
        return sha256_of(json.dumps(dict(self.files), sort_keys=True).encode())

    @property
    def address(self) -> str:
        path = f"//{self.path}" if self.path else ""
        return f"{self.url}{path}" + ("" if self.ref == DEFAULT_BRANCH else f"@{self.ref}")


def origin_digests(files: Iterable[PlainFile]) -> dict[str, str]:
    """The digest of each file: SHA-256 of its bytes, followed by ``+x`` if it is executable."""
    return {
        file.path: f"sha256:{hashlib.sha256(file.content).hexdigest()}{' +x' if file.executable else ''}"
        for file in files
    }


def path_of(project: Project, kind: Kind, name: str) -> Path:
    """The file with the origin of the mod or recipe ``name``; it may not exist."""
    return _folder_of(project, kind) / f"{name}{SUFFIX}"


def _folder_of(project: Project, kind: Kind) -> Path:
    return project.mods if kind == "mod" else project.recipes


def copy_names(project: Project, kind: Kind) -> tuple[str, ...]:
    top = _folder_of(project, kind)
    paths = top.glob(f"*{SUFFIX}") if kind == "mod" else top.rglob(f"*{SUFFIX}")  # recipes may be in subfolders
    return tuple(sorted(path.relative_to(top).as_posix().removesuffix(SUFFIX) for path in paths))


def read_origin(project: Project, kind: Kind, name: str) -> Origin | None:
    """The origin of the mod or recipe ``name``; None if it is not a copy. Raises FileProblemsError if damaged."""
    path = path_of(project, kind, name)
    if not path.is_file():
        return None
    file = project.relative(path)
    data = yaml_file.load(read_text(path, file, project.root), file)
    if isinstance(data, dict):
        data.pop("content", None)  # for the reader: a digest of `files`
    try:
        return records.record(Origin, data)
    except records.RecordError as error:
        adds = f"`builder {kind}s add ADDRESS --as {name}`"
        hint = f"restore the file with git, or remove it and copy the {kind} again: {adds}"
        problem = Problem(Location(file), f"not a valid origin of a copy: {error}")
        raise FileProblemsError((problem,), hint=hint) from None


def write_origin(project: Project, kind: Kind, name: str, origin: Origin) -> None:
    data = {**records.plain(origin), "files": dict(sorted(origin.files.items())), "content": origin.content}
    write_atomically(path_of(project, kind, name), (_HEAD.format(kind=kind, name=name) + yaml_file.dump(data)).encode())


RECIPE = "recipe.yaml"  # the name of a recipe's only file in a copy, whatever its real name


def place_of(project: Project, kind: Kind, name: str) -> Path:
    if kind == "mod":
        return project.mods / name
    other = project.recipes / f"{name}.yml"
    return other if other.exists() else project.recipes / f"{name}.yaml"


def read_copy_files(project: Project, kind: Kind, name: str) -> tuple[PlainFile, ...] | None:
    """The files of a mod or recipe, sorted by path; None if it does not exist. Raises ConflictError if something else
    has its place, and FileProblemsError for files that cannot be read."""
    place = place_of(project, kind, name)
    shown = project.relative(place.parent) + f"/{place.name}"
    zipped = kind == "mod" and place.with_name(f"{name}.zip").exists()
    if zipped or place.is_symlink():
        what = f"{shown}.zip already exists" if zipped else f"{shown} is a link"
        raise ConflictError(what, hint=f"remove it, or copy under another name: {_renames(kind)}")
    if not place.exists():
        return None
    if kind == "mod":
        return read_plain_files(place, shown)
    try:
        return (PlainFile(RECIPE, executable=False, content=read_plain_file(place, LARGEST_TEXT)),)
    except OSError as error:
        raise ConflictError(f"{shown} cannot be read: {error.strerror}") from None


def entries_of_recipe(content: bytes, key: str) -> tuple[str, ...]:
    """The entries of a recipe's list (``mods``, ``volumes``). Empty if invalid, as `builder recipes check` reports."""
    data = None
    with suppress(FileProblemsError, UnicodeDecodeError):
        data = yaml_file.load(content.decode("utf-8-sig"), "")
    entries = data.get(key) if isinstance(data, dict) else None
    listed = entries if isinstance(entries, list) else ()
    return tuple(entry.strip() for entry in listed if isinstance(entry, str) and entry.strip())


MOD_FILES = ("run.sh", "mod.yaml")
_RECIPE_SUFFIXES = (".yaml", ".yml")
_RECIPE_NAME = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._+-]*/)*[A-Za-z0-9][A-Za-z0-9._+-]*")
_MOST_LISTED = 40


@dataclass(frozen=True)
class Upstream:
    """A repository at the current commit of ``address.ref``, with the paths of all its files."""

    address: CopyAddress
    commit: str
    paths: tuple[str, ...]

    @property
    def url(self) -> str:
        return git.split(self.address.url).url


CopyState = Literal["new", "same", "unrecorded", "shipped", "differs", "unfit"]


@dataclass(frozen=True)
class PlannedCopy:
    """A planned copy: the ``files`` that ``name`` gets, and their ``origin``, None for the user's own files. ``before``
    are the files to replace, ``previous`` is their origin, if any, and ``edited`` changed since the copy.
    ``is_shipped`` if they came with this program and are unedited. ``reason`` says why no copy is possible."""

    kind: Kind
    name: str
    files: tuple[PlainFile, ...] = ()
    origin: Origin | None = None
    before: tuple[PlainFile, ...] | None = None
    previous: Origin | None = None
    edited: tuple[str, ...] = ()
    is_shipped: bool = False
    changes: tuple[FileChange, ...] = ()
    reason: str = ""

    @property
    def commit(self) -> str:
        return self.origin.commit[:12] if self.origin else ""

    @property
    def replaces(self) -> bool:
        return self.before is not None and bool(self.changes)

    @property
    def loses(self) -> bool:
        """True if the copy would replace edits, or files that were never copied."""
        return self.replaces and not self.is_shipped and (self.previous is None or bool(self.edited))

    @property
    def state(self) -> CopyState:
        """``unrecorded`` files equal the copy, but have no recorded origin. ``shipped`` files differ, came with this
        program, and are unedited. Execute bits are not compared."""
        if self.reason or self.before is None:
            return "unfit" if self.reason else "new"
        if [(file.path, file.content) for file in self.before] != [(file.path, file.content) for file in self.files]:
            return "shipped" if self.is_shipped else "differs"
        return "unrecorded" if self.origin and not self.previous and not self.changes else "same"


def find_repository(project: Project, address: CopyAddress, notify: Notify) -> Upstream:
    """Looks up a repository. Raises SourceError if it does not answer, or has no such ref. Also raises SourceError for
    a path of this machine that is missing or is something else, since git's own message would not help."""
    place = Path(address.url)
    if place.is_absolute() and not place.exists():
        raise SourceError(f"there is no file or folder {place}", hint=f"check the path; an address is {_FORM}")
    if (place.is_file() and place.suffix != ".bundle") or (place.is_dir() and not _is_repository(place)):
        hint = "to use a mod's folder or zip, copy it into mods/; to use a recipe, copy it into recipes/"
        if around := next(filter(_is_repository, place.parents), None):
            hint = f"name its place within the repository {around}: {around}//{place.relative_to(around)}"
        raise SourceError(f"{place} is not a git repository", hint=hint)
    repository = mirror.locate(project.mirrors, address.url, notify)
    return Upstream(address, *foreign_files.find_commit(repository, address.ref))


def _is_repository(folder: Path) -> bool:
    return (folder / ".git").exists() or (folder / "HEAD").is_file()


def mods_at(upstream: Upstream) -> tuple[str, ...]:
    """The paths of the mods at the address or below it, sorted. Raises SourceError if there are none."""
    folders = {posixpath.dirname(path) for path in upstream.paths if posixpath.basename(path) in MOD_FILES}
    nested = {folder for folder in folders if any(other and folder.startswith(f"{other}/") for other in folders)}
    return _at_address(upstream, "mod", sorted(folders - nested), sorted(folders - nested))


def recipes_at(upstream: Upstream) -> tuple[str, ...]:
    """The recipes at the address or below it, sorted. For a whole repository, the recipes in ``recipes/``."""
    wanted = upstream.address.path
    everything = sorted(path for path in upstream.paths if path.endswith(_RECIPE_SUFFIXES))
    recipes = [path for path in everything if "recipes" in path.split("/")[:-1]] or everything
    exact = [path for path in everything if path in {wanted, *(f"{wanted}{suffix}" for suffix in _RECIPE_SUFFIXES)}]
    return tuple(exact) or _at_address(upstream, "recipe", everything if wanted else recipes, recipes)


def _at_address(upstream: Upstream, kind: Kind, paths: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The ``paths`` at the address or below it. Raises SourceError if there are none, and suggests ``others``."""
    wanted = upstream.address.path
    within = tuple(path for path in paths if not wanted or path == wanted or path.startswith(f"{wanted}/"))
    if not within:
        where = f"{wanted} of {upstream.url}" if wanted else upstream.url
        listed = f"there are: {', '.join(others[:_MOST_LISTED])}" if others else "`@REF` at the end names a branch"
        hint = did_you_mean(wanted, others) or listed
        raise SourceError(f"there is no {kind} at {where} ({upstream.commit[:12]})", hint=hint)
    return within


def require_one(upstream: Upstream, kind: Kind, paths: Sequence[str]) -> str:
    """Returns the only path. Raises UsageError with all ``paths`` if there are several."""
    if len(paths) == 1:
        return paths[0]
    listed = "".join(f"\n  {path}" for path in paths[:_MOST_LISTED])
    more = f"\n  and {len(paths) - _MOST_LISTED} more" if len(paths) > _MOST_LISTED else ""
    ref = "" if upstream.address.ref == DEFAULT_BRANCH else f"@{upstream.address.ref}"
    hint = f"name one: `builder {kind}s add {upstream.url}//{paths[0]}{ref}`; `--all` copies all of them"
    raise UsageError(f"there are {len(paths)} {kind}s at {upstream.url}:{listed}{more}", hint=hint)


def name_of(upstream: Upstream, kind: Kind, path: str) -> str:
    """The name for the copy of a mod or recipe at ``path``: its own name; below a requested folder, its path there."""
    if kind == "mod":
        url = upstream.url.rstrip("/").removesuffix(".git")
        return posixpath.basename(path) or re.split(r"[/:]", url)[-1]
    folder = upstream.address.path
    below = path.startswith(f"{folder}/") if folder else path.startswith("recipes/")
    inside = path[len(folder or "recipes") + 1 :] if below else posixpath.basename(path)
    return posixpath.splitext(inside)[0]


def _renames(kind: Kind) -> str:
    """The way to another name. In a command that copies a recipe with its mods, ``--as`` names the recipe."""
    return f"`builder {kind}s add ADDRESS --as NAME`"


def require_name(kind: Kind, name: str) -> None:
    """Raises UsageError if the text is not a valid name of a mod or recipe."""
    pattern = mod.NAME if kind == "mod" else _RECIPE_NAME
    if not pattern.fullmatch(name):
        message = f"`{name}` is not a valid {kind} name"
        way = "`--as NAME`" if kind == "recipe" else _renames(kind)
        raise UsageError(message, hint=f"choose another name: {way}, with letters, digits and . _ + -")


def plan_copy(project: Project, upstream: Upstream, kind: Kind, path: str, name: str, notify: Notify) -> PlannedCopy:
    """Reads the mod or recipe at ``path`` of a repository, and compares it with ``name`` of the project. Raises
    UsageError for an invalid name, SourceError for files that cannot be copied, and the errors of `compare_copy`."""
    require_name(kind, name)
    repository = mirror.locate(project.mirrors, upstream.address.url, notify)
    files = foreign_files.read_foreign_files(repository, upstream.commit, path)
    if kind == "recipe":
        files = (replace(files[0], path=RECIPE, executable=False),)
    origin = Origin(upstream.url, path, upstream.address.ref, upstream.commit, origin_digests(files))
    return compare_copy(project, kind, name, files, origin)


def copy_edits(files: Sequence[PlainFile], copied: Origin) -> tuple[str, ...]:
    """The files that differ from the copied files, including missing files."""
    now = origin_digests(files)
    return tuple(sorted(path for path in {*now, *copied.files} if now.get(path) != copied.files.get(path)))


def compare_copy(
    project: Project, kind: Kind, name: str, files: tuple[PlainFile, ...], origin: Origin | None
) -> PlannedCopy:
    """Compares ``files`` with the files of ``name`` in the project. Raises ConflictError if something else has its
    place, and FileProblemsError for files and records that cannot be read."""
    before, previous = read_copy_files(project, kind, name), read_origin(project, kind, name)
    edited = copy_edits(before, previous) if before is not None and previous else ()
    is_shipped = False  # files that came with this program, unedited and not copied, may be replaced
    if before is not None and not path_of(project, kind, name).exists():
        place = place_of(project, kind, name).relative_to(project.root).as_posix()
        contents = {place if kind == "recipe" else f"{place}/{file.path}": file.content for file in before}
        is_shipped = shipped_files.is_unedited(project, place, contents)
    sides = ({file.path: file for file in side} for side in (before or (), files))
    differences = tuple(changes.of_files(*sides))
    return PlannedCopy(kind, name, files, origin, before, previous, edited, is_shipped, differences)


def put_in_place(project: Project, planned: PlannedCopy) -> None:
    """Copies all files as planned, or none, and then records the origin. If the process is killed between the two, the
    next update writes the record. Raises ConflictError if files changed after the plan, or cannot be written."""
    kind, name, before, files = planned.kind, planned.name, planned.before, planned.files
    place = place_of(project, kind, name)
    try:
        project.state.mkdir(parents=True, exist_ok=True)
        with locked(project.state / "copies.lock"):
            if read_copy_files(project, kind, name) != before:
                raise ConflictError(f"{kind} {name} changed while this command ran", hint="run the command again")
            if kind == "recipe" and before != files:
                place.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(place, files[0].content)
            elif kind == "mod":
                with fresh_folder(place) as fresh:  # also removes the folder of a killed process
                    if before != files:
                        for file in files:
                            path = fresh / file.path
                            path.parent.mkdir(parents=True, exist_ok=True)
                            path.write_bytes(file.content)
                            path.chmod(0o755 if file.executable else 0o644)
                        replace_folder(fresh, place)
        if planned.origin:
            write_origin(project, kind, name, planned.origin)
        else:
            path_of(project, kind, name).unlink(missing_ok=True)
    except OSError as error:
        raise ConflictError(f"{kind}s/{name} cannot be written: {error.strerror or error}") from None
