"""A project gets files of this program, and can update them later.

A record is committed with the project. It shows which files the user has edited."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

import builder
from builder import definitions
from builder.base import files, records
from builder.base.errors import FileProblemsError, Location, Problem, UnsafePathError, UsageError
from builder.base.project import Project, below_project
from builder.base.values import dataclass, replace
from builder.base.words import sha256_of
from builder.definitions import checkpoint_definition, image
from builder.definitions import recipe as recipes
from builder.definitions.mod import PlainFile, mod_names, name_of
from builder.lock import layout, lock_file
from builder.lock.model import Lock

_PACKAGE = Path(builder.__file__).parent
# pyproject.toml puts the files there when a wheel is built.
_IN_WHEEL = _PACKAGE / "moving/files"
_SKELETON = Path(__file__).parent / "skeleton"
_LITTER = frozenset({"__pycache__", ".DS_Store"})


def shipped_project() -> Project:
    """The definitions, mods, recipes, scripts and pins of this program, as a read-only project. Raises UsageError if
    they are neither in the package nor around it."""
    for root in (_IN_WHEEL, _PACKAGE.parent):
        if (root / "dockerfiles/_parts").is_dir():
            return Project(root)
    message = f"this installation has no definitions: neither {_IN_WHEEL} nor {_PACKAGE.parent} holds dockerfiles/"
    raise UsageError(message, hint="install the wheel that `make wheel` makes, or run builder in a clone")


def below_package(root: Path, folder: str) -> Iterator[PlainFile]:
    """The sorted files in ``folder`` of ``root``; ``folder`` may also be a file. Links are left out."""
    top = root / folder
    for path in (top,) if top.is_file() else sorted(top.rglob("*")):
        inside = path.relative_to(root)
        if path.is_file() and not path.is_symlink() and not _LITTER.intersection(inside.parts):
            yield PlainFile(inside.as_posix(), bool(path.stat().st_mode & 0o100), path.read_bytes())


Contents = Literal["all", "spark", "cpu", "minimal"]
# Projects may add their own lines to these files. Missing lines are added at the end.
LINES = (".gitignore", ".gitattributes")
# Scripts for the development and the tests of this program.
_OWN_SCRIPTS = frozenset(f"scripts/{name}" for name in ("browser", "compose", "setup", "test"))


@dataclass(frozen=True)
class Selection:
    """The definitions and mods of a project by name; its recipes by file, beginning with the images that are fastest to
    build; its ``files`` except images.lock; and the initial ``pins`` of images.lock."""

    contents: Contents
    definitions: tuple[str, ...]
    mods: tuple[str, ...]
    recipes: tuple[str, ...]
    files: dict[str, PlainFile]
    pins: Lock


def select(contents: Contents) -> Selection:
    """Selects the files for ``contents``. ``spark`` and ``cpu`` have the definitions with or without a GPU, the recipes
    for their images, and the mods of both. ``minimal`` has only the parts for writing definitions."""
    project, is_all = shipped_project(), contents == "all"
    names = tuple(
        name
        for name in image.definition_names(project)
        if is_all or image.serve_settings(project, name).gpus == {"spark": "all", "cpu": "none"}.get(contents)
    )
    efforts = {image.repository_of(project, name): _effort(project, name) for name in names}
    every = [recipe for _, recipe in recipes.readable_recipes(project) if recipe.repository in efforts]
    every.sort(key=lambda recipe: (efforts[recipe.repository], recipe.file))
    mods = {name_of(mod) for recipe in every for mod in recipe.mods}
    mods |= {name_of(mod) for name in names for mod in image.load_image(project, name, "linux/arm64").mods}
    mods = set(mod_names(project)) if is_all else mods
    named = {recipe.checkpoint for recipe in every if recipe.checkpoint}
    checkpoints = set(checkpoint_definition.checkpoint_names(project)) if is_all else named
    folders = [f"dockerfiles/{name}" for name in ("_parts", *names)]
    folders += [*(f"mods/{name}" for name in sorted(mods)), *(f"checkpoints/{name}" for name in sorted(checkpoints))]
    files = [file for folder in folders for file in below_package(project.root, folder)]
    files = [file for file in files if not layout.is_packages(file.path)]  # these come with the pins
    files += [PlainFile(recipe.file, False, (project.root / recipe.file).read_bytes()) for recipe in every]
    scripts = below_package(project.root, "scripts") if names else ()
    files += [script for script in scripts if script.path not in _OWN_SCRIPTS]
    # The first line of each file that users write refers to its schema in this folder.
    schemas = below_package(Path(definitions.__file__).parent, "schemas")
    files += [PlainFile(f"builder/definitions/{schema.path}", False, schema.content) for schema in schemas]
    own = ("builder.yaml", "AGENTS.md", *LINES)  # the initial content of each project's own files
    files += [PlainFile(name, False, (_SKELETON / name.removeprefix(".")).read_bytes()) for name in own]
    # A new project must not list images that were built in a checkout.
    pins = lock_file.read_lock(project.lock).pins
    return Selection(
        contents=contents,
        definitions=names,
        mods=tuple(sorted(mods)),
        recipes=tuple(recipe.file for recipe in every),
        files={file.path: file for file in files},
        pins=Lock({name: pins[name] for name in names if name in pins}),
    )


def _effort(project: Project, name: str) -> int:
    """The effort of an image: 0 for an image built elsewhere, 1 for wheels, 2 for hours of compiling."""
    chain = image.load_chain(project, name, "linux/arm64")
    return max(2 if each.git_sources else 1 if each.wheel_sources else 0 for each in chain)


# The record of the files that a project got from this program. It is committed with the project, and not kept in the
# state folder, which may be deleted at any time.

FILE = ".builder-init.json"
_HEAD = {"schema_version": 1}


@dataclass(frozen=True)
class InitRecord:
    """The release of a project's files, the chosen ``contents``, and the digest of each file when it was written."""

    release: str
    contents: Contents
    files: Mapping[str, str]


def read_shipped_record(project: Project) -> InitRecord | None:
    """Reads the record, if it exists. Raises FileProblemsError if it is damaged, or was written by a newer release."""
    try:
        return records.read_file(project.root / FILE, InitRecord, _HEAD)
    except FileNotFoundError:
        return None
    except (OSError, records.RecordError) as error:
        hint = (
            "if a newer builder wrote this file, update builder; otherwise restore it from git, or delete it. Without "
            "it, every file that differs from this release counts as edited"
        )
        raise FileProblemsError((Problem(Location(FILE), str(error)),), hint=hint) from None


def write_shipped_record(project: Project, record: InitRecord) -> None:
    in_order = replace(record, files=dict(sorted(record.files.items())))
    files.write_atomically(project.root / FILE, records.text_of(in_order, _HEAD).encode())


# Each checkpoints/NAME, dockerfiles/NAME and mods/NAME is a unit: if the user deleted it, none of its files come back.
_WHOLES = frozenset({"checkpoints", "dockerfiles", "mods"})

FileState = Literal["new", "same", "newer", "edited", "kept", "deleted"]


@dataclass(frozen=True)
class PlannedFile:
    """A file of this release and its state in a project. ``new``: the project lacks it. ``same``: the project has it.
    ``newer``: the project has an unedited older file. ``edited``: the project's file was edited or has an unknown
    origin, and this release has a new one. ``kept``: it was edited, and this release has no new one. ``deleted``: the
    user deleted it, or has another folder of that name. ``before`` is the present content, ``after`` the new."""

    file: PlainFile
    state: FileState
    before: bytes | None
    after: bytes

    @property
    def path(self) -> str:
        return self.file.path

    def difference(self) -> tuple[str, ...]:
        before = (self.before or b"").decode("utf-8", "replace").splitlines()
        after = self.after.decode("utf-8", "replace").splitlines()
        return tuple(difflib.unified_diff(before, after, f"{self.path} here", f"{self.path} now", lineterm=""))


def plan_shipped(
    project: Project, files: Mapping[str, PlainFile], record: InitRecord | None
) -> tuple[PlannedFile, ...]:
    """Compares ``files`` with the project's files, using the ``record`` of the written files. Raises UnsafePathError if
    a path leads out of the project, and OSError if a file cannot be read."""
    digests = record.files if record else {}
    gone = {_whole(path) for path in digests} - {_whole(path) for path in digests if (project.root / path).exists()}
    planned = [_planned(project, file, digests, gone) for file in files.values()]
    # A folder with some of these names, but no file of this program, is the user's own: a mod of the same name. Adding
    # a file of this program would change that mod.
    there = {_whole(each.path) for each in planned if each.before is not None}
    ours = {_whole(each.path) for each in planned if each.state in {"same", "newer"}}
    return tuple(
        replace(each, state="deleted") if each.state == "new" and _whole(each.path) in there - ours else each
        for each in planned
    )


def _planned(project: Project, file: PlainFile, digests: Mapping[str, str], gone: set[str]) -> PlannedFile:
    path = below_project(project.root, project.root / file.path)
    try:
        before = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        before = None
    except IsADirectoryError:
        raise UnsafePathError(f"{file.path} is a folder, but builder must write a file there") from None
    written, after = digests.get(file.path), file.content
    state: FileState
    if file.path in LINES:
        after = _with_lines(before or b"", file.content)
        state = "same" if before == after else "new" if before is None else "newer"
    elif before is None:
        state = "deleted" if written is not None or _whole(file.path) in gone else "new"
    elif before == after:
        state = "same" if file.executable is bool(path.stat().st_mode & 0o100) else "newer"
    elif written == sha256_of(before):
        state = "newer"
    else:
        state = "kept" if written == sha256_of(after) else "edited"
    return PlannedFile(file, state, before, after)


def _with_lines(before: bytes, wanted: bytes) -> bytes:
    """``before``, followed by the lines of ``wanted`` that it lacks."""
    present = before.splitlines()
    missing = [line for line in wanted.splitlines() if line not in present]
    lines = [*([before.rstrip(b"\n")] if before.strip() else []), *missing, b""]
    return b"\n".join(lines) if missing else before


def _whole(path: str) -> str:
    first, *rest = PurePosixPath(path).parts
    return f"{first}/{rest[0]}" if first in _WHOLES and len(rest) > 1 else path


def is_unedited(project: Project, place: str, files: Mapping[str, bytes]) -> bool:
    """True if ``files`` (the contents by path of ``place``, a file or folder of the project) are unchanged since
    `builder init` wrote them, or equal this release. In a checkout of this program, whose files are the release itself,
    only the first case counts. Raises FileProblemsError for a damaged record."""
    digests = {path: sha256_of(content) for path, content in files.items()}
    record = read_shipped_record(project)
    written = record.files if record else {}
    if digests == {path: value for path, value in written.items() if path == place or path.startswith(f"{place}/")}:
        return True
    shipped = shipped_project().root
    if shipped.resolve() == project.root.resolve():
        return False
    return digests == {file.path: sha256_of(file.content) for file in below_package(shipped, place)}


def write_shipped(project: Project, planned: Iterable[PlannedFile]) -> None:
    """Writes each file in one step. Raises UnsafePathError if a path leads out of the project, and OSError."""
    for each in planned:
        path = below_project(project.root, project.root / each.path)
        files.make_folder(path.parent)
        files.write_atomically(path, each.after, mode=0o755 if each.file.executable else 0o644)


# The release of this program: its number, and the commit that it was built from.

# hatch_build.py writes this file when it builds a wheel or a source archive.
COMMIT_FILE = _PACKAGE / "commit"
# The names of a repository's address: https://packaging.python.org/en/latest/specifications/well-known-project-urls/
_SOURCE_NAMES = frozenset({"source", "repository", "sourcecode", "source code", "github"})


@dataclass(frozen=True)
class ProgramRelease:
    """The number of a release, and the commit that it was built from; empty if the commit is not recorded."""

    number: str
    commit: str

    def __str__(self) -> str:
        return f"{self.number} ({self.commit[:12]})" if self.commit else self.number


def of_this_program() -> ProgramRelease:
    """The running release. The commit was recorded when a wheel was built; in a checkout, git reports it."""
    from importlib import metadata

    commit = ""
    try:
        commit = COMMIT_FILE.read_text(encoding="ascii").strip()
    except OSError:
        if _is_checkout():
            from builder.sources import foreign_files

            commit = foreign_files.commit_of(_PACKAGE.parent)
    return ProgramRelease(metadata.version("builder"), commit)


def repository_of_releases() -> str:
    """The address of the repository with this program's releases. A checkout was cloned from it; a wheel names it as
    its source. Empty if it is unknown."""
    from importlib import metadata

    if _is_checkout():
        from builder.sources import foreign_files

        return foreign_files.origin_of(_PACKAGE.parent)
    urls = metadata.metadata("builder").get_all("Project-URL") or ()
    named = (url.partition(", ") for url in urls)
    return next((address for name, _, address in named if name.lower() in _SOURCE_NAMES), "")


def newer_release(address: str) -> str:
    """The newest release tag of the repository at ``address``, if it is newer than this release; otherwise empty.
    Raises SourceError if the repository does not answer."""
    from packaging.version import Version

    from builder.sources import vllm_versions

    tag = vllm_versions.newest_version_tag(address)
    return tag if tag and Version(tag) > Version(of_this_program().number) else ""


def _is_checkout() -> bool:
    return (_PACKAGE.parent / ".git").exists()  # a repository of a folder above contains another program
