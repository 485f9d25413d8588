"""A build directory as it is on disk: what ``builds/REPOSITORY/NUMBER/`` tells of the image that was built from it.

A directory of a chain holds a part for each definition: the last one's files lie at its top, those of the definitions
below in folders of their names (see ``builder.plan.make``).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.errors import FileProblemsError, Location, Problem
from builder.numbered import plan_file
from builder.plan import bake

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.lock.model import ImageName
    from builder.plan.model import Step
    from builder.project import Project

_HINT = "it is committed with images.lock: take it back with git"
_MOD = "mod "
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class BuildPart:
    """What one definition put into a build directory. ``definition`` is empty for the image's own; ``takes`` holds what
    each step takes in, by the step's own name; ``target`` is the part's in the bake file."""

    definition: str
    folder: Path
    takes: Mapping[str, Mapping[str, str]]
    target: Mapping[str, Any]

    @property
    def mods(self) -> tuple[str, ...]:
        """The names of the mods that it bakes, in their order."""
        return tuple(step.removeprefix(_MOD) for step in self.takes if step.startswith(_MOD))

    def mod(self, name: str) -> Path:
        """The folder of a mod."""
        return self.folder / "mods" / name

    @property
    def contexts(self) -> dict[str, tuple[str, str]]:
        """The sources that are taken from git: address and commit by name."""
        found = {}
        for name, context in self.target.get("contexts", {}).items():
            url, sign, commit = str(context).rpartition("#")
            if sign:
                found[name.removesuffix(bake.source_context(""))] = (url, commit)
        return found


@dataclass(frozen=True)
class BuildDirectory:
    """``parts`` are those of the chain, the lowest definition first."""

    path: Path
    steps: tuple[Step, ...]
    parts: tuple[BuildPart, ...]

    @property
    def mods(self) -> dict[str, Path]:
        """The folder of each mod, by name."""
        return {name: part.mod(name) for part in self.parts for name in part.mods}


def path_of(project: Project, name: ImageName) -> Path:
    """Where the build directory of a number is, or would be."""
    return project.build_directory(name.repository, name.number)


def read(project: Project, name: ImageName) -> BuildDirectory:
    """The build directory of a number. Raises FileProblemsError where it is gone or cannot be made sense of."""
    path = path_of(project, name)
    if not path.is_dir():
        raise _problem(project, path, f"the build directory of {name} is gone")
    try:
        steps = plan_file.read(path)
        by_part = _by_part(steps)
    except plan_file.UNREADABLE as error:
        raise _problem(project, path / plan_file.FILE, f"cannot be read: {_said(error)}") from None
    bake_file = path / "bake.json"
    try:
        targets = _targets(bake_file.read_text(encoding="utf-8"))
    except plan_file.UNREADABLE as error:
        raise _problem(project, bake_file, f"cannot be read: {_said(error)}") from None
    parts = (
        BuildPart(definition, path / definition, takes, targets.get(definition or bake.TARGET, {}))
        for definition, takes in by_part.items()
    )
    return BuildDirectory(path, steps, tuple(parts))


def _by_part(steps: tuple[Step, ...]) -> dict[str, dict[str, dict[str, str]]]:
    """What each step takes in, by its own name and the definition that it belongs to.

    Raises ValueError for a name that this program does not write: it would lead to other folders.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for step in steps:
        above, _, own = step.name.rpartition(": ")
        definition = above.rpartition(": ")[2]
        for folder in (definition, own.removeprefix(_MOD) if own.startswith(_MOD) else ""):
            if folder and not _FOLDER.fullmatch(folder):
                raise ValueError(f"no step is called `{step.name}`")
        found.setdefault(definition, {})[own] = {str(name): str(value) for name, value in step.takes.items()}
    return found


def _targets(text: str) -> dict[str, dict[str, Any]]:
    found = {str(name): dict(target) for name, target in json.loads(text)["target"].items()}
    for target in found.values():
        dict(target.get("contexts", {}))
    return found


def files(folder: Path) -> Iterator[Path]:
    """The files below ``folder``, sorted; links are none, since nobody staged them."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def metadata(part: BuildPart) -> dict[str, Any]:
    """What build-metadata.yaml says; empty where it is gone or somebody wrote something else into it."""
    try:
        lines = (part.folder / "build-metadata.yaml").read_text(encoding="utf-8").splitlines()
        pairs = (line.partition(": ") for line in lines)
        return {key: json.loads(value) for key, _, value in pairs}
    except (OSError, ValueError, RecursionError):
        return {}


def _problem(project: Project, path: Path, said: str) -> FileProblemsError:
    return FileProblemsError((Problem(Location(project.relative(path)), said),), hint=_HINT)


def _said(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{error}" if isinstance(error, ValueError) else "it is not what this program wrote"
