"""A checkout of spark-vllm-docker: its recipes and mods, its .env, and the origin of its files.

Nothing of .env is run. A value that bash would compute is reported as a problem."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files
from builder.base.errors import BuilderError, Location, Problem, UsageError
from builder.base.words import did_you_mean
from builder.definitions import mod, recipe
from builder.definitions.fields import LARGEST_TEXT, read_text
from builder.definitions.mod import PlainFile
from builder.moving import copies
from builder.moving.copies import DEFAULT_BRANCH, MOD_FILES, Origin
from builder.sources import git
from builder.sources.git import GitRepository

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCRIPTS = ("build-and-copy.sh", "launch-cluster.sh", "run-recipe.sh", "run-recipe.py", "hf-download.sh")
ENV_FILE = ".env"


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
        return path.relative_to(self.root).as_posix()


def find_checkout(folder: Path) -> Checkout:
    """Reads the checkout in ``folder``. Raises UsageError where there is none."""
    root = folder.expanduser().resolve()
    hint = "name the folder of the checkout, where launch-cluster.sh and recipes/ are"
    if not root.is_dir():
        raise UsageError(f"{folder} is no folder", hint=hint)
    if not any((root / name).exists() for name in ("recipes", "mods", *SCRIPTS, ENV_FILE)):
        raise UsageError(
            f"{folder} is no checkout of spark-vllm-docker: no recipes/, no mods/, no .env and none of its scripts",
            hint=hint,
        )
    recipes = recipe.recipe_files(root / "recipes")
    return Checkout(
        root,
        {path.relative_to(root / "recipes").with_suffix("").as_posix(): path for path in recipes},
        {path.name.removesuffix(".zip"): path for path in sorted((root / "mods").glob("[!.]*")) if _is_mod(path)},
        tuple(sorted(f"examples/{path.name}" for path in (root / "examples").glob("*.sh"))),
        tuple(sorted(path.name for path in root.glob("Dockerfile*"))),
    )


def choose_checkout(checkout: Checkout, texts: Sequence[str]) -> tuple[str, ...]:
    """The names of the recipes that ``texts`` name, as the launcher there takes them: a name or a path, with or without
    suffix; all of them where there are none. Raises UsageError for one that is not there, or that several have."""
    return tuple(dict.fromkeys(_choose_one(checkout, text) for text in texts)) or tuple(checkout.recipes)


def _choose_one(checkout: Checkout, text: str) -> str:
    path = Path(text)
    if path.is_absolute() and path.resolve().is_relative_to(checkout.root):
        path = path.resolve().relative_to(checkout.root)
    bare = path.with_suffix("") if path.suffix in recipe.SUFFIXES else path
    name = bare.as_posix().removeprefix("recipes/")
    matching = [name] if name in checkout.recipes else [each for each in checkout.recipes if each.endswith(f"/{name}")]
    if len(matching) > 1:
        raise UsageError(f"`{text}` names several recipes: {', '.join(matching)}", hint="name one with its folder")
    if not matching:
        hint = did_you_mean(name, checkout.recipes) or "without a name, all of its recipes are meant"
        raise UsageError(f"{checkout.root} has no recipe `{text}`", hint=hint)
    return matching[0]


def mod_at(checkout: Checkout, entry: str) -> Path | None:
    """The folder or zip file of the mod that a recipe calls ``entry``: a path from the checkout's top, or a name in
    ``mods/``. None where it is not there, or lies outside."""
    for path in (checkout.root / entry, checkout.root / "mods" / entry):
        real = path.resolve()
        if real.is_relative_to(checkout.root) and real != checkout.root and _is_mod(path):
            return path
    return checkout.mods.get(mod.name_of(entry))


def name_of_mod(path: Path) -> str:
    return path.name.removesuffix(".zip")


def read_mod(checkout: Checkout, path: Path) -> tuple[PlainFile, ...]:
    """The files of a mod, sorted by path. Raises FileProblemsError for what is no file of its own, or too large."""
    shown = checkout.shown(path)
    if not path.is_file():
        return mod.read_plain_files(path, shown)
    contents = mod.read_zip(path, shown)
    described = [] if contents.yaml is None else [PlainFile(mod.DESCRIPTION, False, contents.yaml.encode())]
    return tuple(sorted([*contents.files, *described], key=lambda file: file.path))


def _is_mod(path: Path) -> bool:
    return any((path / name).is_file() for name in MOD_FILES) or (path.suffix == ".zip" and path.is_file())


# ``.env`` as bash reads simple assignments. A value may stand in quotes, ``export`` before the name, a comment behind.

# The launcher there allows blanks beside the sign, which bash does not, and blanks within a value without quotes.
_ASSIGNMENT = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)", re.ASCII)
_PART = re.compile(
    r"""(?P<end>\s+\#.*|\s*$) | '(?P<literal>[^']*)' | "(?P<quoted>(?:\\.|[^"\\])*)" | \\(?P<escaped>.) | [^'"]""",
    re.VERBOSE,
)
_EXPANSION = re.compile(r"\$[A-Za-z_0-9{(@*#?$!-]|`")


@dataclass(frozen=True)
class EnvFile:
    """The values by their variables, which may be secrets, and the problems of the lines that are no assignments."""

    values: dict[str, str] = field(repr=False)
    problems: tuple[Problem, ...] = ()

    def value(self, name: str) -> str:
        """The value of a variable without blanks around it, empty where it has none."""
        return self.values.get(name, "").strip()


def read_env_file(path: Path, file: str) -> EnvFile:
    """Reads the file at ``path``. Raises UsageError where it cannot be read, FileProblemsError where it is no text."""
    return parse_env_file(read_text(path, file), file)


def parse_env_file(text: str, file: str) -> EnvFile:
    """Parses the text of a file that messages call ``file``. Of a name that stands twice the last one counts."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        problem = "no assignment NAME=VALUE: left out"
        if match := _ASSIGNMENT.fullmatch(line):
            name = match["name"]
            problem = f"{name} stands in line {lines[name]} already: the last one counts" if name in lines else ""
            try:
                values[name], lines[name] = _value(match["value"]), number
            except ValueError as error:
                problem = f"{name}: {error}: left out"
        if problem:
            problems.append(Problem(Location(file, number), problem))
    return EnvFile(values, tuple(problems))


def _value(text: str) -> str:
    """The value that bash gives ``text``. Raises ValueError, without the value in its message, where there is none."""
    collected = ""
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ValueError(f"its quote {text[at]} is not closed")
        if part["end"] is not None:
            break
        kind, written = part.lastgroup, part[part.lastgroup] if part.lastgroup else part[0]
        computed = _EXPANSION.search(re.sub(r"\\.", " ", written)) if kind == "quoted" else _EXPANSION.match(text, at)
        if computed and kind in ("quoted", None):
            raise ValueError("bash would compute its value, which is not done here")
        collected += re.sub(r'\\(["\\$`])', r"\1", written) if kind == "quoted" else written
        at = part.end()
    return collected


# Git never ends where a setting includes a pipe that nobody writes to.
_SECONDS = 30


@dataclass(frozen=True)
class UpstreamCommit:
    """The last commit of a checkout that ``url`` has on its branch ``ref``, and the ids of its files by path."""

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

    def output(*arguments: str) -> str:
        result = git.run_local(repository, arguments, seconds=_SECONDS)
        return "" if result.status else result.output.decode("utf-8", "surrogateescape").strip()

    try:
        default = output("symbolic-ref", "refs/remotes/origin/HEAD")
        branch = output("rev-parse", "--symbolic-full-name", "@{upstream}") or default
        remote, _, ref = branch.removeprefix("refs/remotes/").partition("/")
        url = git.split(output("config", "--get", f"remote.{remote}.url")).url
        commit = output("merge-base", "HEAD", branch)
        if not branch.startswith("refs/remotes/") or not url or url.startswith(".") or not commit:
            return None
        listed = output("ls-tree", "-r", "-z", "--full-tree", commit)
    except (BuilderError, OSError):
        return None
    pairs = (entry.partition("\t") for entry in listed.split("\0") if entry)
    blobs = {name: meta.split()[2] for meta, _, name in pairs}
    return UpstreamCommit(url, DEFAULT_BRANCH if branch == default else ref, commit, blobs)


def origin_of_files(upstream: UpstreamCommit | None, path: str, files: Sequence[PlainFile]) -> Origin | None:
    """The origin of ``files`` at ``path`` of the checkout; None for what is the user's own, or was edited."""
    blobs = upstream.blobs if upstream else {}
    there = {name: blob for name, blob in blobs.items() if name == path or name.startswith(f"{path}/")}
    here = {path if path in there else f"{path}/{file.path}": _blob(file.content) for file in files}
    if upstream is None or not there or here != there:
        return None
    return Origin(upstream.url, path, upstream.ref, upstream.commit, copies.origin_digests(files))


def edited(upstream: UpstreamCommit | None, root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Those of ``paths`` in the checkout that are there and not as upstream has them."""

    def blob(path: Path) -> str:
        try:
            return _blob(files.read_plain_file(path.resolve(), LARGEST_TEXT))
        except OSError:
            return ""

    blobs = upstream.blobs if upstream else {}
    return tuple(path for path in paths if (root / path).is_file() and blob(root / path) != blobs.get(path))


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
