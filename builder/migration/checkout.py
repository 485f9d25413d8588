"""A checkout of spark-vllm-docker: its recipes, its mods and its ``.env``, as they lie in its folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions.mods import mod_files, mod_reading
from builder.definitions.recipes import finding
from builder.errors import FileProblemsError, Location, Problem, UsageError
from builder.sources.git.foreign_files import PlainFile
from builder.storage import regular_file
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SCRIPTS = ("build-and-copy.sh", "launch-cluster.sh", "run-recipe.sh", "run-recipe.py", "hf-download.sh")
ENV_FILE = ".env"
_MOD_FILES = ("run.sh", mod_files.DESCRIPTION)
_LITTER = frozenset({".git", ".DS_Store", "__MACOSX", "__pycache__"})


@dataclass(frozen=True)
class Checkout:
    """A checkout at ``root``: its recipes and mods by name, each with its path (a mod is a folder or a zip file), and
    the paths of scripts in ``examples/``, which start a server without a recipe, and of Dockerfiles."""

    root: Path
    recipes: Mapping[str, Path]
    mods: Mapping[str, Path]
    launch_scripts: tuple[str, ...]
    dockerfiles: tuple[str, ...]

    def shown(self, path: Path) -> str:
        """``path`` as it is called in the checkout."""
        return path.relative_to(self.root).as_posix()


def find(folder: Path) -> Checkout:
    """Reads the checkout in ``folder``. Raises UsageError where there is none."""
    root = folder.expanduser().resolve()
    if not root.is_dir():
        raise UsageError(f"{folder} is no folder", hint="name the folder of the checkout, where launch-cluster.sh is")
    has_parts = any((root / name).is_dir() for name in ("recipes", "mods"))
    if not has_parts and not any((root / name).exists() for name in (*SCRIPTS, ENV_FILE)):
        raise UsageError(
            f"{folder} is no checkout of spark-vllm-docker: no recipes/, no mods/, no .env and none of its scripts",
            hint="name the folder where launch-cluster.sh and recipes/ are",
        )
    recipes = {
        path.relative_to(root / "recipes").with_suffix("").as_posix(): path for path in finding.files(root / "recipes")
    }
    mods = {path.stem if path.suffix == ".zip" else path.name: path for path in _mods(root / "mods")}
    scripts = (f"examples/{path.name}" for path in (root / "examples").glob("*.sh"))
    dockerfiles = (path.name for path in root.glob("Dockerfile*"))
    return Checkout(root, recipes, mods, tuple(sorted(scripts)), tuple(sorted(dockerfiles)))


def choose(checkout: Checkout, texts: Sequence[str]) -> tuple[str, ...]:
    """The names of the recipes that ``texts`` name, as the launcher there takes them: a name or a path, with or without
    suffix; all of them where there are none. Raises UsageError for one that is not there, or that several have."""
    return tuple(dict.fromkeys(_choose_one(checkout, text) for text in texts)) or tuple(checkout.recipes)


def mod_at(checkout: Checkout, entry: str) -> Path | None:
    """The folder or zip file of the mod that a recipe calls ``entry``: a path from the checkout's top, or a name in
    ``mods/``. None where it is not there, or lies outside."""
    for path in (checkout.root / entry, checkout.root / "mods" / entry):
        real = path.resolve()
        is_zip = path.suffix == ".zip" and path.is_file()
        if real.is_relative_to(checkout.root) and real != checkout.root and (is_zip or _is_mod(path)):
            return path
    return checkout.mods.get(mod_reading.name_of(entry))


def read_mod(checkout: Checkout, path: Path) -> tuple[PlainFile, ...]:
    """Reads the files of a mod, sorted by path. Raises FileProblemsError for what is no file of its own, or too
    large."""
    shown = checkout.shown(path)
    if path.suffix == ".zip" and path.is_file():
        contents = mod_files.read_zip(path, shown)
        files = [PlainFile(file.path, file.executable, file.content) for file in contents.files]
        if contents.yaml is not None:
            files.append(PlainFile(mod_files.DESCRIPTION, executable=False, content=contents.yaml.encode()))
        return tuple(sorted(files, key=lambda file: file.path))
    files, wrong, room = [], [], mod_files.LARGEST_MOD
    for inside in _files_below(path):
        location = Location(f"{shown}/{inside.as_posix()}")
        try:
            reason = _unfit(path / inside, path.resolve(), room)
            if not reason:
                content = regular_file.read((path / inside).resolve(), mod_files.LARGEST_FILE)
                executable = bool((path / inside).stat().st_mode & 0o100)
        except OSError as error:
            reason = str(error.strerror)
        if reason:
            wrong.append(Problem(location, reason))
            continue
        room -= len(content)
        files.append(PlainFile(inside.as_posix(), executable, content))
    if wrong:
        raise FileProblemsError(tuple(wrong))
    return tuple(sorted(files, key=lambda file: file.path))


def _choose_one(checkout: Checkout, text: str) -> str:
    wanted = Path(text)
    if wanted.is_absolute() and wanted.resolve().is_relative_to(checkout.root / "recipes"):
        wanted = wanted.resolve().relative_to(checkout.root / "recipes")
    bare = wanted.with_suffix("") if wanted.suffix in finding.SUFFIXES else wanted
    parts = bare.parts[1:] if bare.parts[:1] == ("recipes",) else bare.parts
    name = "/".join(parts)
    matching = (
        [name]
        if name in checkout.recipes
        else [other for other in checkout.recipes if parts and tuple(other.split("/"))[-len(parts) :] == parts]
    )
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"`{text}` names several recipes: {', '.join(matching)}", hint="name one with its folder")
    hint = did_you_mean(name, checkout.recipes) or "without a name, all of its recipes are meant"
    raise UsageError(f"{checkout.root} has no recipe `{text}`", hint=hint)


def _mods(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not path.name.startswith(".") and (_is_mod(path) or (path.suffix == ".zip" and path.is_file())):
            yield path


def _is_mod(path: Path) -> bool:
    return any((path / name).is_file() for name in _MOD_FILES)


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        folders[:] = sorted(set(folders) - _LITTER - set(links))
        for name in (*names, *links):
            if name not in _LITTER:
                yield Path(parent, name).relative_to(folder)


def _unfit(path: Path, folder: Path, room: int) -> str:
    """The reason why ``path`` is no file of the mod in ``folder``, or nothing."""
    if not path.resolve().is_relative_to(folder):
        return "a link that leaves the mod's folder"
    if not path.is_file():
        return "a link to a folder" if path.is_dir() else "no plain file"
    size = path.stat().st_size
    if size > min(mod_files.LARGEST_FILE, room):
        return f"{size:,} bytes; at most {min(mod_files.LARGEST_FILE, room):,} are copied"
    return ""
