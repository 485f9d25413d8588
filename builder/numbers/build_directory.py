"""A build directory records everything that a numbered image was built from.

Bake targets come first, then plan.json, the directory as a whole, its files, and the metadata for other tools.
A recorded bake file is never run. It is compared with the targets that this program would make.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import files
from builder.base.errors import FileProblemsError, Location, Problem
from builder.base.files import read_plain_file
from builder.base.values import dataclass
from builder.plan import plan_model, rules
from builder.plan.plan_model import StagedFile, Step

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.lock.model import ImageName


# The bake targets of a recorded build, as this program makes them. Anyone may have written the bake file of a build
# directory, and a bake file may name folders, secrets and outputs of the building machine. So it is never run: it is
# compared with the targets of a plan with these steps, and those targets are run. All versions of this program have
# made the same targets.

_TOLD = 20
_LONGEST = 60
_EPOCH = re.compile("0|[1-9][0-9]{0,11}")
_LABEL = re.compile(r"(?:builder|org\.opencontainers\.image)\.[a-z0-9.-]{1,100}")


def bake_targets_of(directory: BuildDirectory, platform: str) -> dict[str, dict[str, Any]]:
    """Returns the targets that build a number for ``platform`` again. Raises FileProblemsError with everything in the
    bake file that this program never writes."""
    from builder.plan import making

    if wrong := tuple(islice(deviations(directory, platform), _TOLD)):
        location = Location(f"{directory.shown}/{making.FILE}")
        message = tuple(Problem(location, f"{what} does not have the form that builder writes") for what in wrong)
        hint = f"the file was not run; `git log {location.file}` shows its changes"
        raise FileProblemsError(message, hint=f"{hint}, `git checkout HEAD -- {location.file}` restores it")
    return dict(_expected_targets(directory, platform))


def deviations(directory: BuildDirectory, platform: str) -> Iterator[str]:
    """Yields the differences between the bake file and the targets that this program writes. Labels and the date of the
    image may differ."""
    from builder.plan import making

    expected = dict(_expected_targets(directory, platform))
    document = directory.bake_file
    if making.TARGET not in expected:
        yield f"target {making.TARGET}, which the plan does not contain,"
    yield from (f"`{key[:_LONGEST]}`" for key in sorted(document.keys() - {"group", "target"}))
    if document.get("group", making.bake_groups()) != making.bake_groups():
        yield "`group`"
    yield from (f"target {name[:_LONGEST]}" for name in sorted(document["target"].keys() - expected.keys()))
    for name, target in expected.items():
        recorded = document["target"].get(name, {})
        for key in sorted(recorded.keys() | target.keys()):
            if key not in recorded or key not in target or recorded[key] != target[key]:
                yield f"`{key[:_LONGEST]}` of target {name}"


def _expected_targets(directory: BuildDirectory, platform: str) -> Iterator[tuple[str, dict[str, Any]]]:
    from builder.plan import making

    parent = ""
    for part in directory.parts:
        trees = {
            name: f"{url}#{commit}"
            for name, (url, commit) in part.contexts.items()
            if commit == part.takes.get(name, {}).get("commit")
        }
        epoch, labels = part.target.get("args", {}).get("SOURCE_DATE_EPOCH"), part.target.get("labels", {})
        date = int(epoch) if isinstance(epoch, str) and _EPOCH.fullmatch(epoch) else 0
        secret = making.packages_secret(part.definition)
        # A build by a version that did not record packages has no such secret.
        records = part.target.get("secret") == [secret]
        folder, above = part.definition, parent or None
        target = making.bake_target(platform, date, trees, above, records_packages=records, folder=folder)
        if folder:
            yield folder, target
        else:
            own = {key: text for key, text in labels.items() if isinstance(text, str) and _LABEL.fullmatch(key)}
            yield making.TARGET, {**target, **({"labels": own} if own else {})}
        parent = part.definition


# plan.json in a build directory: the steps of the build and their inputs.

FILE = plan_model.PLAN
LARGEST = 64 << 20
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def packages(steps: Iterable[Step]) -> dict[str, str]:
    takes = {
        name: at
        for step in steps
        if step.name.rpartition(": ")[2] in {"base packages", "python packages"}
        for name, at in step.takes.items()
    }
    return {name: identity.partition(" ")[0] for name, identity in sorted(takes.items())}


def read_if_possible(directory: Path) -> tuple[Step, ...] | None:
    try:
        return rules.read_steps(files.read_plain_file(directory / FILE, LARGEST).decode())
    except (OSError, ValueError):
        return None


# A build directory on disk: ``builds/REPOSITORY/NUMBER/`` records everything that an image was built from. The
# directory of a chain has a part for each definition. The files of the last definition are at the top; the files of
# each parent are in a folder of its name (see ``builder.plan.making``).

HINT = "a build directory is committed with images.lock: restore it with git"
_MOD = "mod "
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# An address that image.yaml may have, and a commit.
_TREE = re.compile(r"(?P<url>(?:https?|ssh|git|file)://[^\s'\"\\$`#]+)#(?P<commit>[0-9a-f]{40})")


@dataclass(frozen=True)
class BuildPart:
    """The files and inputs of one definition in a build directory. ``definition`` is empty for the image's own;
    ``takes`` has the inputs of each step, by the step's own name; ``target`` is the bake target of the part."""

    definition: str
    folder: Path
    takes: Mapping[str, Mapping[str, str]]
    target: Mapping[str, Any]

    @property
    def mods(self) -> tuple[str, ...]:
        return tuple(step.removeprefix(_MOD) for step in self.takes if step.startswith(_MOD))

    def mod(self, name: str) -> Path:
        return self.folder / "mods" / name

    @property
    def contexts(self) -> dict[str, tuple[str, str]]:
        from builder.plan import making

        suffix = making.source_context("")
        return {
            name.removesuffix(suffix): (tree["url"], tree["commit"])
            for name, context in self.target.get("contexts", {}).items()
            if name.endswith(suffix) and (tree := _TREE.fullmatch(context))
        }


@dataclass(frozen=True)
class BuildDirectory:
    """The build of one number. ``parts`` are the parts of the chain, each parent before its child. ``bake_file`` is the
    whole bake file, which anyone may have written. Errors call the directory ``shown``."""

    path: Path
    shown: str
    steps: tuple[Step, ...]
    parts: tuple[BuildPart, ...]
    bake_file: Mapping[str, Any]

    @property
    def mods(self) -> dict[str, Path]:
        return {name: part.mod(name) for part in self.parts for name in part.mods}


def path_of(project: Project, name: ImageName) -> Path:
    return project.build_directory(name.repository, name.number)


def read_build_directory(project: Project, name: ImageName) -> BuildDirectory:
    """Reads the build directory of a number. Raises FileProblemsError if it is missing or damaged."""
    path = path_of(project, name)
    shown = project.relative(path)
    if not path.is_dir():
        raise _problem(Location(shown, 0), f"the build directory of {name} is missing")
    return parse_build_directory(path, shown, lambda file: files.read_plain_file(path / file, LARGEST))


def parse_build_directory(path: Path, shown: str, content: Callable[[str], bytes]) -> BuildDirectory:
    """Makes the build directory ``path`` from its plan and its bake file. ``content`` returns the bytes of a file, by
    name, and raises OSError. Raises FileProblemsError if one of the two files is missing or damaged."""
    from builder.plan import making

    file = FILE
    try:
        steps = rules.read_steps(content(file).decode())
        by_part = _by_part(steps)
        file = making.FILE
        bake_file = making.load_bake(content(file).decode())
        targets = _targets(bake_file)
    except _UNREADABLE as error:
        reason = str(error) if isinstance(error, ValueError) else "builder did not write this file"
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        raise _problem(Location(f"{shown}/{file}"), f"cannot be read: {reason}") from None
    parts = (
        BuildPart(definition, path / definition, takes, targets.get(definition or making.TARGET, {}))
        for definition, takes in by_part.items()
    )
    return BuildDirectory(path, shown, steps, tuple(parts), bake_file)


def _by_part(steps: tuple[Step, ...]) -> dict[str, dict[str, dict[str, str]]]:
    """The inputs of each step, by its definition and its own name.

    Raises ValueError for a name that this program does not write: it could lead to another folder.
    """
    by_part: dict[str, dict[str, dict[str, str]]] = {}
    for step in steps:
        prefix, _, own = step.name.rpartition(": ")
        definition = prefix.rpartition(": ")[2]
        for folder in (definition, own.removeprefix(_MOD) if own.startswith(_MOD) else ""):
            if folder and not _FOLDER.fullmatch(folder):
                raise ValueError(f"`{step.name}` is not a valid step name")
        by_part.setdefault(definition, {})[own] = step.takes
    return by_part


def _targets(bake_file: Any) -> dict[str, dict[str, Any]]:
    targets: dict[str, dict[str, Any]] = bake_file["target"]
    mappings = [bake_file, targets, *targets.values()]
    mappings += [target[key] for target in targets.values() for key in ("contexts", "args", "labels") if key in target]
    if not all(isinstance(mapping, dict) for mapping in mappings):
        raise TypeError("a target is a mapping")
    if not all(isinstance(tree, str) for target in targets.values() for tree in target.get("contexts", {}).values()):
        raise TypeError("a context is text")
    return targets


def build_directory_files(folder: Path) -> Iterator[Path]:
    """The files below ``folder``, sorted. Links are left out, because this program writes no links."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _problem(location: Location, message: str) -> FileProblemsError:
    return FileProblemsError((Problem(location, message),), hint=HINT)


# The files in a build directory: the files of the build, and other files that were put there.


def read_build_files(directory: BuildDirectory) -> dict[str, StagedFile]:
    """Reads the files of a build, by path. Other files are left out, such as an editor's backup or a ``.git``.

    Raises FileProblemsError for a missing Dockerfile, an unreadable or too large file, and links, pipes and the like,
    which no build has.
    """
    mods = mods_by_definition(directory)
    files: dict[str, StagedFile] = {}
    wrong: list[Problem] = []
    room = plan_model.LARGEST_BUILD
    for entry in _below(directory.path):
        path = Path(entry).relative_to(directory.path).as_posix()
        location = Location(f"{directory.shown}/{path}")
        if not entry.is_file(follow_symlinks=False):
            wrong.append(Problem(location, "neither a file nor a folder; a build directory contains no links"))
        elif plan_model.belongs(path, mods):
            try:
                content = read_plain_file(Path(entry), min(plan_model.LARGEST_FILE, room))
                executable = bool(entry.stat(follow_symlinks=False).st_mode & 0o100)
            except OSError as error:
                wrong.append(Problem(location, f"cannot be read: {error.strerror}"))
                continue
            room -= len(content)
            files[path] = StagedFile(content, executable and plan_model.may_be_executable(path, mods))
    for definition in mods:
        dockerfile = f"{definition}/Dockerfile".removeprefix("/")
        if dockerfile not in files and not wrong:
            wrong.append(Problem(Location(f"{directory.shown}/{dockerfile}"), "the file is missing"))
    if wrong:
        raise FileProblemsError(tuple(wrong), hint=HINT)
    return files


def strays(directory: BuildDirectory) -> Iterator[str]:
    mods = mods_by_definition(directory)
    for entry in _below(directory.path):
        path = Path(entry).relative_to(directory.path).as_posix()
        if not entry.is_file(follow_symlinks=False) or not plan_model.belongs(path, mods):
            yield path


def mods_by_definition(directory: BuildDirectory) -> Mapping[str, tuple[str, ...]]:
    return {part.definition: part.mods for part in directory.parts}


def _below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder, in a fixed order, except the readable folders themselves. Links are not followed."""
    folders = [os.fspath(folder)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            if entry.is_dir(follow_symlinks=False) and os.access(entry, os.R_OK | os.X_OK):
                folders.append(entry.path)
            else:
                yield entry


# build-metadata.yaml in a build directory: facts that other tools read from an image, and the arguments of its
# templates.

_LARGEST = 1 << 20


def read_metadata(folder: Path) -> dict[str, Any]:
    """Reads the file; empty if it is missing or another program wrote it."""
    try:
        content = files.read_plain_file(folder / "build-metadata.yaml", _LARGEST)
        pairs = (line.partition(": ") for line in content.decode().splitlines())
        return {key: json.loads(value) for key, _, value in pairs}
    except (OSError, ValueError, RecursionError):
        return {}
