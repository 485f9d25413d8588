"""Mods: ``mods/NAME/``, a change baked into an image.

A folder with only a ``run.sh`` is a valid mod; ``mod.yaml`` describes one further.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.reading import read_checked
from builder.errors import FileProblemsError, Place, Problem, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.project import Project

# What describes a mod, or lies about in a working folder, is no part of the change that it makes.
_NOT_BAKED = frozenset({"mod.yaml", "README.md", ".git", ".DS_Store", "__pycache__"})
LARGEST_FILE = 64 * 1024 * 1024


@dataclass(frozen=True)
class ModFile:
    """One file of a mod: its path within the mod, whether it may be executed, and its bytes."""

    path: str
    executable: bool
    content: bytes


@dataclass(frozen=True)
class Check:
    """What must hold in the finished image: a file is there, contains a text, or a script of the mod ends with 0."""

    file: str | None = None
    contains: str | None = None
    run: str | None = None


@dataclass(frozen=True)
class Mod:
    """A mod as read. ``described`` tells one with a mod.yaml from a bare run.sh, whose downloads nobody can pin."""

    name: str
    description: str
    described: bool
    run: str
    network: bool
    checks: tuple[Check, ...]
    files: tuple[ModFile, ...]

    @property
    def content_hash(self) -> str:
        """SHA-256 over the names, bytes and execute bits of its files: the same on every machine and checkout."""
        digest = hashlib.sha256()
        for file in self.files:
            head = f"{len(file.path)}:{file.path}:{int(file.executable)}:{len(file.content)}:"
            digest.update(head.encode() + file.content)
        return f"sha256:{digest.hexdigest()}"


def names(project: Project) -> tuple[str, ...]:
    """The names of all mods in the project, sorted."""
    if not project.mods.is_dir():
        return ()
    folders = (path.parent for kind in ("run.sh", "mod.yaml") for path in project.mods.glob(f"*/{kind}"))
    return tuple(sorted({folder.name for folder in folders}))


def name_of(asked: str) -> str:
    """The name in ``mods/NAME``, as recipes write it, or ``NAME``."""
    return asked.removeprefix("mods/").rstrip("/")


def load(project: Project, asked: str) -> Mod:
    """The mod ``NAME`` or ``mods/NAME``. Raises UsageError for an unknown one, FileProblemsError for a bad one."""
    name = name_of(asked)
    folder = project.mods / name
    known = names(project)
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"no mod `{name}` in {project.mods} (a mod is a folder with a run.sh or a mod.yaml)",
            hint=f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}",
        )
    described = folder / "mod.yaml"
    data = read_checked(described, project.relative(described), "mod") if described.is_file() else {}
    mod = Mod(
        name=name,
        description=data.get("description", ""),
        described=bool(data),
        run=data.get("run", "run.sh"),
        network=data.get("network", not data),
        checks=tuple(Check(**check) for check in data.get("check", ())),
        files=tuple(_files(project, folder)),
    )
    scripts = {mod.run, *(check.run for check in mod.checks if check.run)}
    missing = sorted(scripts - {file.path for file in mod.files})
    if missing:
        place = Place(project.relative(described if data else folder))
        raise FileProblemsError(tuple(Problem(place, f"no file {script} in mods/{name}") for script in missing))
    return mod


def _files(project: Project, folder: Path) -> list[ModFile]:
    found: list[ModFile] = []
    wrong: list[Problem] = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not _NOT_BAKED.isdisjoint(inside.parts) or (path.is_dir() and not path.is_symlink()):
            continue
        place = Place(project.relative(folder) + f"/{inside}")
        if not path.resolve().is_relative_to(folder.resolve()):
            wrong.append(Problem(place, "a link that leaves the mod's folder; copy the file in"))
        elif not path.is_file():
            wrong.append(Problem(place, "not a file; a mod holds plain files"))
        elif path.stat().st_size > LARGEST_FILE:
            wrong.append(Problem(place, f"{path.stat().st_size:,} bytes; a mod's files have at most {LARGEST_FILE:,}"))
        else:
            found.append(ModFile(inside.as_posix(), bool(path.stat().st_mode & 0o100), path.read_bytes()))
    if wrong:
        raise FileProblemsError(tuple(wrong))
    return found
