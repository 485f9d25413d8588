"""This page reads a checkout of spark-vllm-docker.

The checkout comes first, then its .env, then the origin of its files.
Nothing of .env is run. A value that bash would compute is reported as a problem.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files
from builder.base.errors import BuilderError, FileProblemsError, Location, Problem, UsageError
from builder.base.files import read_plain_file
from builder.base.words import did_you_mean
from builder.definitions import mod, recipe
from builder.definitions.fields import LARGEST_TEXT, read_text
from builder.moving import copies
from builder.moving.copies import DEFAULT_BRANCH, Origin
from builder.sources import git
from builder.sources.foreign_files import PlainFile
from builder.sources.git import GitRepository

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# A checkout of spark-vllm-docker: its recipes, its mods and its ``.env``, as they lie in its folder.

SCRIPTS = ("build-and-copy.sh", "launch-cluster.sh", "run-recipe.sh", "run-recipe.py", "hf-download.sh")
ENV_FILE = ".env"
_MOD_FILES = ("run.sh", mod.DESCRIPTION)
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


def find_checkout(folder: Path) -> Checkout:
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
        path.relative_to(root / "recipes").with_suffix("").as_posix(): path
        for path in recipe.recipe_files(root / "recipes")
    }
    mods = {path.stem if path.suffix == ".zip" else path.name: path for path in _mods(root / "mods")}
    scripts = (f"examples/{path.name}" for path in (root / "examples").glob("*.sh"))
    dockerfiles = (path.name for path in root.glob("Dockerfile*"))
    return Checkout(root, recipes, mods, tuple(sorted(scripts)), tuple(sorted(dockerfiles)))


def choose_checkout(checkout: Checkout, texts: Sequence[str]) -> tuple[str, ...]:
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
    return checkout.mods.get(mod.name_of(entry))


def read_mod(checkout: Checkout, path: Path) -> tuple[PlainFile, ...]:
    """Reads the files of a mod, sorted by path. Raises FileProblemsError for what is no file of its own, or too
    large."""
    shown = checkout.shown(path)
    if path.suffix == ".zip" and path.is_file():
        contents = mod.read_zip(path, shown)
        files = [PlainFile(file.path, file.executable, file.content) for file in contents.files]
        if contents.yaml is not None:
            files.append(PlainFile(mod.DESCRIPTION, executable=False, content=contents.yaml.encode()))
        return tuple(sorted(files, key=lambda file: file.path))
    files, wrong, room = [], [], mod.LARGEST_MOD
    for inside in _files_below(path):
        location = Location(f"{shown}/{inside.as_posix()}")
        try:
            reason = _unfit(path / inside, path.resolve(), room)
            if not reason:
                content = read_plain_file((path / inside).resolve(), mod.LARGEST_FILE)
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
    bare = wanted.with_suffix("") if wanted.suffix in recipe.SUFFIXES else wanted
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
    if size > min(mod.LARGEST_FILE, room):
        return f"{size:,} bytes; at most {min(mod.LARGEST_FILE, room):,} are copied"
    return ""


# ``.env`` of a checkout: assignments as bash reads simple ones, with nothing of it run. A value may stand in quotes,
# ``export`` before the name, a comment behind. One that bash would compute (``$HOME``, ``$(…)``) is a problem of its
# line, and no assignment.

# The launcher there allows blanks beside the sign, which bash does not.
_ASSIGNMENT = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)", re.ASCII)
_EXPANSION = re.compile(r"\$[A-Za-z_0-9{(@*#?$!-]|`")
_COMMENT = re.compile(r"\s+#|\s*$")
_IN_DOUBLE_QUOTES = frozenset('"\\$`')


class _BadValueError(ValueError):
    """A value that cannot be read; the message says why, without the value."""


@dataclass(frozen=True)
class Assignment:
    """A variable, its value, and the line where it stands. A value may be a secret: no message shows it."""

    name: str
    value: str = field(repr=False)
    line: int


@dataclass(frozen=True)
class EnvFile:
    """The assignments in a file by name, and the problems of the lines that are none. Messages call it ``file``."""

    file: str
    assignments: dict[str, Assignment] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def value(self, name: str) -> str:
        """The value of a variable without blanks around it, empty where it has none."""
        assignment = self.assignments.get(name)
        return assignment.value.strip() if assignment else ""


def read_env_file(path: Path, file: str) -> EnvFile:
    """Reads the file at ``path``. Raises UsageError where it cannot be read, FileProblemsError where it is no text."""
    return parse_env_file(read_text(path, file), file)


def parse_env_file(text: str, file: str) -> EnvFile:
    """Parses the text of a file that messages call ``file``. Of a name that stands twice the last one counts."""
    assignments: dict[str, Assignment] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(stripped)
        if match is None:
            problems.append(Problem(Location(file, number), "no assignment NAME=VALUE: left out"))
            continue
        name = match["name"]
        try:
            value = _value(match["value"])
        except _BadValueError as error:
            problems.append(Problem(Location(file, number), f"{name}: {error}"))
            continue
        if name in assignments:
            first = assignments[name].line
            problems.append(
                Problem(Location(file, number), f"{name} stands in line {first} already: the last one counts")
            )
        assignments[name] = Assignment(name, value, number)
    return EnvFile(file, assignments, tuple(problems))


def _value(text: str) -> str:
    """The value that bash gives ``text``; blanks in it that bash would end it at belong to it, as in the launcher."""
    collected: list[str] = []
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise _BadValueError("its quote ' is not closed: left out")
            collected.append(text[at + 1 : end])
            at = end + 1
        elif letter == '"':
            part, at = _in_double_quotes(text, at + 1)
            collected.append(part)
        elif letter == "\\" and at + 1 < len(text):
            collected.append(text[at + 1])
            at += 2
        elif _COMMENT.match(text, at):
            break
        else:
            _refuse_expansion(text, at)
            collected.append(letter)
            at += 1
    return "".join(collected)


def _in_double_quotes(text: str, at: int) -> tuple[str, int]:
    """The text up to the closing quote, and the place behind that."""
    collected: list[str] = []
    while at < len(text):
        letter = text[at]
        if letter == '"':
            return "".join(collected), at + 1
        if letter == "\\" and text[at + 1 : at + 2] in _IN_DOUBLE_QUOTES:
            collected.append(text[at + 1])
            at += 2
            continue
        _refuse_expansion(text, at)
        collected.append(letter)
        at += 1
    raise _BadValueError('its quote " is not closed: left out')


def _refuse_expansion(text: str, at: int) -> None:
    if _EXPANSION.match(text, at):
        raise _BadValueError("bash would compute its value, which is not done here: left out")


# The origin of the files of a checkout, for those that are as the repository has them that it was cloned from.

# What its settings include may never end, such as a pipe that nobody writes to.
_SECONDS = 30


@dataclass(frozen=True)
class UpstreamCommit:
    """The last commit of a checkout that the repository at ``url`` has, on its branch ``ref``; ``blobs`` are the ids of
    its files by path."""

    url: str
    ref: str
    commit: str
    blobs: dict[str, str]


def find_upstream_commit(root: Path) -> UpstreamCommit | None:
    """Finds the commit that the checkout at ``root`` shares with the repository that it was cloned from, without asking
    that. None where it is no clone, or git cannot tell."""
    if not (root / ".git").is_dir():
        return None
    repository = GitRepository(root / ".git", git.split(""))
    try:
        return _find(repository)
    except (BuilderError, OSError):
        return None


def origin_of_files(upstream: UpstreamCommit | None, path: str, files: Sequence[PlainFile]) -> Origin | None:
    """The origin of ``files`` at ``path`` of the checkout, where they are what upstream has there; None for what is the
    user's own, or was edited."""
    if upstream is None:
        return None
    there = {name: blob for name, blob in upstream.blobs.items() if name == path or name.startswith(f"{path}/")}
    here = {path if path in there else f"{path}/{file.path}": _blob(file.content) for file in files}
    if not there or here != there:
        return None
    return Origin(upstream.url, path, upstream.ref, upstream.commit, copies.origin_digests(files))


def edited(upstream: UpstreamCommit | None, root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Those of ``paths`` in the checkout at ``root`` that are not as upstream has them; without an upstream all that
    are there."""
    blobs = upstream.blobs if upstream else {}
    there = [path for path in paths if (root / path).is_file()]
    return tuple(path for path in there if _content(root / path) != blobs.get(path))


def _content(path: Path) -> str:
    """The blob of a file; empty of one that is none, or larger than any that is taken."""
    try:
        return _blob(files.read_plain_file(path.resolve(), LARGEST_TEXT))
    except OSError:
        return ""


def _find(repository: GitRepository) -> UpstreamCommit | None:
    tracking = _output(repository, "rev-parse", "--symbolic-full-name", "@{upstream}")
    default = _output(repository, "symbolic-ref", "refs/remotes/origin/HEAD")
    branch = tracking or default
    if not branch.startswith("refs/remotes/"):
        return None
    remote, _, ref = branch.removeprefix("refs/remotes/").partition("/")
    url = git.split(_output(repository, "config", "--get", f"remote.{remote}.url")).url
    commit = _output(repository, "merge-base", "HEAD", branch)
    if not url or url.startswith(".") or not commit:
        return None
    listed = git.run_local(repository, ["ls-tree", "-r", "-z", "--full-tree", commit], seconds=_SECONDS).output
    pairs = (entry.partition(b"\t") for entry in listed.split(b"\0") if entry)
    blobs = {name.decode("utf-8", "surrogateescape"): meta.split()[2].decode() for meta, _, name in pairs}
    return UpstreamCommit(url, DEFAULT_BRANCH if branch == default else ref, commit, blobs)


def _output(repository: GitRepository, *arguments: str) -> str:
    result = git.run_local(repository, arguments, seconds=_SECONDS)
    return result.text if result.status == 0 else ""


def _blob(content: bytes) -> str:
    """The id of a file's content in git."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
