"""Problems of a mod that its schema cannot find: missing files, contradictory settings, changes that would be lost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.definitions.mods.mod import FETCHED, file_name
from builder.definitions.package_name import canonical
from builder.definitions.reading import conflict_mark
from builder.errors import FileProblemsError, Location, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.definitions.mods.mod import Mod
    from builder.definitions.mods.mod_files import ModFile

# Folders of the host are mounted over these when an image serves, and hide whatever is baked there.
HOST_MOUNTS = (
    "/root/.cache/huggingface",
    "/root/.cache/vllm",
    "/root/.cache/flashinfer",
    "/root/.tilelang",
    "/root/.triton",
)
# The name of a file that is fetched, which becomes part of a path here.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")
_TEMPLATES = (".jinja", ".jinja2")
# Mounts of the build: files written there do not end up in the image.
_BUILD_MOUNTS = ("/dev", "/proc", "/run/builder", "/sys")


def problems(mod: Mod) -> Iterator[Problem]:
    """Every problem of ``mod``, with its location in mod.yaml."""
    yield from _wrong_files(mod)
    yield from _wrong_packages(mod)
    folder = mod.file.removesuffix("/mod.yaml")
    conflicts = (conflict_mark(file.content, f"{folder}/{file.path}") for file in mod.files)
    yield from (conflict for conflict in conflicts if conflict)
    if mod.run is None and any(file.path == "run.sh" for file in mod.files):
        yield Problem(mod.location(), "there is a run.sh, which nothing runs; say `run: run.sh`, or remove it")
    elif not (mod.run or mod.copies or mod.patches or mod.packages or mod.env):
        yield Problem(
            mod.location(), "it changes nothing: `files`, `patches`, `packages`, `run` or `env` says what it does"
        )
    if mod.packages and not mod.network:
        yield Problem(mod.location("network"), "`packages` are downloaded, so `network: false` cannot be")
    for index, copy in enumerate(mod.copies):
        message = _unfit_target(copy.to)
        if message:
            yield Problem(mod.location("files", index, "to"), f"{copy.to}: {message}")
    yield from _wrong_addresses(mod)
    yield from _wrong_requires(mod)


def require_templates(mods: Iterable[Mod]) -> None:
    """Raises FileProblemsError with the problems of the chat templates of ``mods``."""
    if wrong := tuple(problem for mod in mods for problem in template_problems(mod)):
        raise FileProblemsError(wrong)


def template_problems(mod: Mod) -> Iterator[Problem]:
    """The chat templates of ``mod``, fetched ones included, that the server could not compile: it would say so only
    minutes after its start. Apart from the other problems, since compiling takes an import that a list can spare."""
    files: tuple[ModFile, ...] = (*mod.files, *mod.fetched)
    templates = [file for file in files if file.path.endswith(_TEMPLATES)]
    if not templates:
        return
    from builder.definitions import chat_template

    for file in templates:
        if fault := chat_template.fault(file.content):
            line, reason = fault
            path = file_name(f"/{file.path}") if file.path.startswith(f"{FETCHED}/") else file.path
            yield Problem(Location(f"mods/{mod.name}/{path}", line), f"no chat template that can be compiled: {reason}")


def _wrong_addresses(mod: Mod) -> Iterator[Problem]:
    for index, copy in enumerate(mod.copies):
        if copy.is_remote:
            name = file_name(copy.source)
            if not _FILE_NAME.fullmatch(name):
                message = f"{copy.source}: an address ends with the name of a file, of letters, digits and . _ + -"
                yield Problem(mod.location("files", index, "from"), message)
            elif not copy.sha256:
                message = (
                    f"{copy.source} has no sha256; `builder mods pin {mod.name}` fills in that of what is there today"
                )
                yield Problem(mod.location("files", index, "from"), message)
        elif copy.sha256:
            message = "a sha256 belongs to a file from an address; the mod's own files need none"
            yield Problem(mod.location("files", index, "sha256"), message)


def _wrong_files(mod: Mod) -> Iterator[Problem]:
    """Files that mod.yaml names outside the mod's folder, or that do not exist."""
    files = {file.path: file for file in mod.files}
    folders = {path[:end] for path in files for end, mark in enumerate(path) if mark == "/"}
    scripts: list[tuple[str, tuple[str | int, ...]]] = [(mod.run, ("run",))] if mod.run else []
    scripts += [(check.run, ("check", index, "run")) for index, check in enumerate(mod.checks) if check.run]
    named = [*scripts, *((patch.file, ("patches", index, "file")) for index, patch in enumerate(mod.patches))]
    copied = [(copy.source, ("files", index, "from")) for index, copy in enumerate(mod.copies) if not copy.is_remote]
    for name, at in (*named, *copied):
        if name.startswith("/") or ".." in name.split("/"):
            yield Problem(mod.location(*at), f"{name} leaves the mod's folder; copy the file in")
        elif name not in files and not (at[0] == "files" and name in folders):
            yield Problem(mod.location(*at), f"no file {name} in mods/{mod.name}")


def _unfit_target(to: str) -> str:
    """The reason why nothing can be copied to the path ``to``, or nothing."""
    if ".." in to.split("/"):
        return "a path without `..` says where"
    for folder in HOST_MOUNTS:
        if _is_below(to, folder):
            return f"a folder of the host is mounted over {folder} when the image serves, so nobody would see it"
    for folder in _BUILD_MOUNTS:
        if _is_below(to, folder):
            return f"what is written below {folder} does not stay in an image"
    return ""


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def _wrong_packages(mod: Mod) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for index, text in enumerate(mod.packages):
        package = canonical(re.split(r"[\[=]", text, maxsplit=1)[0])
        if package in seen:
            yield Problem(mod.location("packages", index), f"{text}: {seen[package]} is asked for, too")
        seen.setdefault(package, text)


def _wrong_requires(mod: Mod) -> Iterator[Problem]:
    ranges: list[tuple[str, str, Location]] = [
        (name, text, mod.location("requires", name)) for name, text in mod.requires.items()
    ]
    required = set(map(canonical, mod.requires))
    for index, patch in enumerate(mod.patches):
        if patch.version:
            location = mod.location("patches", index, "version")
            ranges.append((patch.package, patch.version, location))
            if canonical(patch.package) not in required:
                yield Problem(location, f"`requires` has to name {canonical(patch.package)}, so that an image pins it")
    if not ranges:
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for name, text, location in ranges:
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            message = f"{name}: {text!r} is no range of versions; meant is one as in pip's requirements: >=0.19,<0.23"
            yield Problem(location, message)
