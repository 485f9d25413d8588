"""A build directory on disk: the record in ``builds/REPOSITORY/NUMBER/`` of what an image was built from.

The directory of a chain holds a part for each definition: the files of the last one lie at its top, those of its
parents in folders of their names (see ``builder.plan.make``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.errors import FileProblemsError, Location, Problem
from builder.numbered import plan_file
from builder.plan import bake, explain
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from builder.lock.model import ImageName
    from builder.plan.model import Step
    from builder.project import Project

HINT = "it is committed with images.lock: take it back with git"
_MOD = "mod "
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# The addresses that image.yaml may have, and a commit.
_TREE = re.compile(r"(?P<url>(?:https?|ssh|git|file)://[^\s'\"\\$`#]+)#(?P<commit>[0-9a-f]{40})")


@dataclass(frozen=True)
class BuildPart:
    """The files and inputs of one definition in a build directory. ``definition`` is empty for the image's own;
    ``takes`` holds the inputs of each step, by the step's own name; ``target`` is the part's in the bake file."""

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
        suffix = bake.source_context("")
        return {
            name.removesuffix(suffix): (tree["url"], tree["commit"])
            for name, context in self.target.get("contexts", {}).items()
            if name.endswith(suffix) and (tree := _TREE.fullmatch(context))
        }


@dataclass(frozen=True)
class BuildDirectory:
    """The build of one number. ``parts`` are those of the chain, each parent before its child; ``bake_file`` is the
    whole bake file, which anyone may have written, and ``shown`` what errors call the directory."""

    path: Path
    shown: str
    steps: tuple[Step, ...]
    parts: tuple[BuildPart, ...]
    bake_file: Mapping[str, Any]

    @property
    def mods(self) -> dict[str, Path]:
        """The folder of each mod, by name."""
        return {name: part.mod(name) for part in self.parts for name in part.mods}


def path_of(project: Project, name: ImageName) -> Path:
    """The build directory of a number, whether it exists or not."""
    return project.build_directory(name.repository, name.number)


def read(project: Project, name: ImageName) -> BuildDirectory:
    """Reads the build directory of a number. Raises FileProblemsError where it is gone or damaged."""
    path = path_of(project, name)
    shown = project.relative(path)
    if not path.is_dir():
        raise _problem(shown, f"the build directory of {name} is gone")
    return parse(path, shown, lambda file: regular_file.read(path / file, plan_file.LARGEST))


def parse(path: Path, shown: str, content: Callable[[str], bytes]) -> BuildDirectory:
    """Makes the build directory ``path`` of its plan and its bake file. ``content`` gives the bytes of a file, by name,
    and raises OSError. Raises FileProblemsError where one of them is gone or damaged."""
    try:
        steps = explain.read_steps(content(plan_file.FILE).decode())
        by_part = _by_part(steps)
    except plan_file.UNREADABLE as error:
        raise _problem(f"{shown}/{plan_file.FILE}", f"cannot be read: {_reason(error)}") from None
    try:
        bake_file = bake.load(content(bake.FILE).decode())
        targets = _targets(bake_file)
    except plan_file.UNREADABLE as error:
        raise _problem(f"{shown}/{bake.FILE}", f"cannot be read: {_reason(error)}") from None
    parts = (
        BuildPart(definition, path / definition, takes, targets.get(definition or bake.TARGET, {}))
        for definition, takes in by_part.items()
    )
    return BuildDirectory(path, shown, steps, tuple(parts), bake_file)


def _by_part(steps: tuple[Step, ...]) -> dict[str, dict[str, dict[str, str]]]:
    """The inputs of each step, by the definition that it belongs to and its own name.

    Raises ValueError for a name that this program does not write: it would lead to other folders.
    """
    by_part: dict[str, dict[str, dict[str, str]]] = {}
    for step in steps:
        prefix, _, own = step.name.rpartition(": ")
        definition = prefix.rpartition(": ")[2]
        for folder in (definition, own.removeprefix(_MOD) if own.startswith(_MOD) else ""):
            if folder and not _FOLDER.fullmatch(folder):
                raise ValueError(f"no step is called `{step.name}`")
        by_part.setdefault(definition, {})[own] = {str(name): str(value) for name, value in step.takes.items()}
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


def files(folder: Path) -> Iterator[Path]:
    """The files below ``folder``, sorted. Links are left out: this program writes none."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _problem(shown: str, message: str) -> FileProblemsError:
    return FileProblemsError((Problem(Location(shown), message),), hint=HINT)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return f"{error}" if isinstance(error, ValueError) else "it is not what this program wrote"
