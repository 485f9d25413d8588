"""A mod is a change that is baked into an image: ``mods/NAME/`` or ``mods/NAME.zip``, with a run.sh or a mod.yaml.

The mod and its loading come first, then its files, its problems, the known sources of mods, facts read from the text of
a script, and the digests that are written into mod.yaml. This module never runs a script.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.base import yaml_file
from builder.base.errors import FileProblemsError, Location, Problem, UsageError, require_no_problems
from builder.base.files import LONGEST_NAME, zip_errors
from builder.base.values import dataclass, replace
from builder.base.words import did_you_mean
from builder.definitions import configuration
from builder.definitions.fields import canonical, checked, conflict_mark, decoded
from builder.definitions.shell import LONGEST_ARGUMENT

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Callable, Collection, Iterable, Iterator

    from builder.base.project import Project
    from builder.base.yaml_file import YamlPath


FETCHED = ".fetched"
"""The folder of the files fetched from addresses, in a mod's folder of a build directory."""


def is_address(source: str) -> bool:
    return source.startswith(("https://", "http://"))


def file_name(address: str) -> str:
    """The name of the file at ``address``, without a query. Empty if the address names no file."""
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(address).path).rpartition("/")[2]


@dataclass(frozen=True)
class FileCopy:
    """A copy of ``source``, a file or folder of the mod or the address of a file with the digest ``sha256``.

    ``to`` is an absolute path, or relative to the workspace. If it is ``.`` or ends with a slash, the copy is put into
    that folder; otherwise ``to`` is the path of the copy. A folder is merged into an existing folder."""

    source: str
    to: str
    sha256: str = ""

    @property
    def is_remote(self) -> bool:
        return is_address(self.source)

    @property
    def staged(self) -> str:
        """The path of the file in the mod's folder of a build directory."""
        return f"{FETCHED}/{self.sha256}/{file_name(self.source)}" if self.is_remote else self.source


@dataclass(frozen=True)
class ModPatch:
    """A unified diff ``file`` of the mod, applied in the folder of the importable ``package``, so that a diff from the
    package's repository fits with ``strip`` 1. Packages outside the versions ``version`` are not patched.

    The first case that applies counts: ``git apply`` accepts the diff with its full context; the reverse of the diff
    applies, so the patch is already applied; ``git apply -C1`` accepts the diff, and the reduced context is reported.
    Anything else is an error.
    """

    file: str
    package: str
    strip: int = 1
    version: str = ""

    def fits(self, version: str) -> bool:
        """True if the patch is for this version of its package, which may be a development version."""
        if not self.version:
            return True
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(self.version).contains(version, prereleases=True)


@dataclass(frozen=True)
class ModCheck:
    """A check of the finished image: a file exists, a file contains a text, or a script of the mod exits with 0. With
    ``gpu``, the check runs only if the engine has an NVIDIA GPU."""

    file: str | None = None
    contains: str | None = None
    run: str | None = None
    gpu: bool = False


@dataclass(frozen=True)
class Mod:
    """A mod as read. ``described`` is true for a mod with a mod.yaml; the downloads of a bare run.sh cannot be pinned.

    A mod installs its ``packages``, makes its ``copies``, applies its ``patches``, and runs the script ``run`` for at
    most ``seconds``, in this order. ``env`` is set in the image. ``requires`` maps the name of a pinned source or
    package to its accepted versions (PEP 440). Errors point at ``file``: the mod.yaml, whose text is ``yaml``, or the
    mod itself. ``fetched`` are the downloaded files from addresses.
    """

    name: str
    description: str
    described: bool
    run: str | None
    network: bool
    checks: tuple[ModCheck, ...]
    files: tuple[PlainFile, ...]
    copies: tuple[FileCopy, ...]
    patches: tuple[ModPatch, ...]
    packages: tuple[str, ...]
    env: dict[str, str]
    requires: dict[str, str]
    conflicts: tuple[str, ...]
    after: tuple[str, ...]
    may_be_empty: bool
    seconds: int
    file: str
    yaml: str
    fetched: tuple[PlainFile, ...] = ()

    @property
    def content_hash(self) -> str:
        """SHA-256 over everything that is baked or checked: the names, bytes and execute bits of the mod's files, the
        digests of files from addresses, and the steps in mod.yaml. Every machine and checkout gets the same hash."""
        steps = {
            "run": [self.run, self.network, self.seconds, self.may_be_empty],
            "files": [[copy.staged, copy.to] for copy in self.copies],
            "patches": [[each.file, each.package, each.strip, *filter(None, [each.version])] for each in self.patches],
            "packages": self.packages,
            "env": self.env,
            "check": [[each.file, each.contains, each.run, *(["gpu"] if each.gpu else [])] for each in self.checks],
        }
        digest = hashlib.sha256(json.dumps(steps, sort_keys=True).encode())
        for file in self.files:
            head = f"{len(file.path)}:{file.path}:{int(file.executable)}:{len(file.content)}:"
            digest.update(head.encode() + file.content)
        return f"sha256:{digest.hexdigest()}"

    def location(self, *path: str | int) -> Location:
        """The location of the value at ``path`` in mod.yaml, or of the mod if it has no mod.yaml."""
        return yaml_file.location_of(path, self.yaml, self.file)


# The default time limit of a script, in seconds: compiling kernels takes long.
SCRIPT_SECONDS = 3600
# The name is part of a path in the Dockerfile and of the name of a build step.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def mod_names(project: Project) -> tuple[str, ...]:
    if not project.mods.is_dir():
        return ()
    folders = {path.parent.name for kind in ("run.sh", "mod.yaml") for path in project.mods.glob(f"*/{kind}")}
    names_there = folders | {path.stem for path in project.mods.glob("*.zip")}
    return tuple(sorted(name for name in names_there if not name.startswith(".")))  # hidden: being added or removed


def name_of(text: str) -> str:
    """The mod's name in ``mods/NAME``, ``./mods/NAME/`` or ``mods/NAME.zip``, as recipes write it, or ``NAME``."""
    return text.removeprefix("./").removeprefix("mods/").rstrip("/").removesuffix(".zip")


def load_mod(project: Project, text: str) -> Mod:
    """Reads the mod ``NAME`` or ``mods/NAME``. Raises UsageError if it does not exist, FileProblemsError if it is
    invalid."""
    name = name_of(text)
    existing = mod_names(project)
    if name not in existing:
        raise _unknown(project, name, existing)
    folder, archive = project.mods / name, project.mods / f"{name}.zip"
    shown = f"mods/{archive.name}" if archive.is_file() else f"mods/{name}"
    real = Path(os.path.realpath(archive if archive.is_file() else folder))
    if not real.is_relative_to(os.path.realpath(project.root)):
        message = f"a link leads out of {project.root}, to {real}: replace the link with the mod"
        raise FileProblemsError((Problem(Location(shown), message),))
    if archive.is_file() and folder.is_dir():
        message = f"mods/{name} also exists as a folder; remove one of them"
        raise FileProblemsError((Problem(Location(shown), message),))
    contents = read_zip(archive, shown) if archive.is_file() else read_folder(folder, shown)
    if not NAME.fullmatch(name):
        message = "the name of a mod may contain only letters, digits and . _ + -"
        raise FileProblemsError((Problem(Location(shown), message),))
    described = contents.yaml is not None
    data: dict[str, Any] = {"run": "run.sh"}
    if contents.yaml is not None:
        data = checked(contents.yaml, contents.yaml_file, "mod")
    copies = ((text if is_address(text := each["from"]) else text.rstrip("/"), each) for each in data.get("files", ()))
    mod = Mod(
        name=name,
        description=data.get("description", ""),
        described=described,
        run=data.get("run"),
        network=data.get("network", not described or "packages" in data),
        checks=tuple(ModCheck(**check) for check in data.get("check", ())),
        files=contents.files,
        copies=tuple(FileCopy(source, each["to"], each.get("sha256", "")) for source, each in copies),
        patches=tuple(ModPatch(**patch) for patch in data.get("patches", ())),
        packages=tuple(data.get("packages", ())),
        env={key: str(value) for key, value in data.get("env", {}).items()},
        requires=data.get("requires", {}),
        conflicts=tuple(map(name_of, data.get("conflicts", ()))),
        after=tuple(map(name_of, data.get("after", ()))),
        may_be_empty=data.get("may_be_empty", False),
        seconds=data.get("timeout", SCRIPT_SECONDS),
        file=contents.yaml_file if described else shown,
        yaml=contents.yaml or "",
    )
    problems = [Problem(mod.location(*at), message) for at, message in _problems(mod)]
    root = mod.file.removesuffix("/mod.yaml")
    conflicts = (conflict_mark(file.content, f"{root}/{file.path}") for file in mod.files)
    require_no_problems([*problems, *filter(None, conflicts)])
    return mod


def _unknown(project: Project, name: str, existing: Collection[str]) -> UsageError:
    hint = remedy(project, name) or did_you_mean(name, existing)
    return UsageError(
        f"no mod `{name}` in {project.mods} (a mod is a folder with a run.sh or mod.yaml, or a zip of it)",
        hint=hint or f"existing mods: {', '.join(existing) or 'none'}",
    )


def load_all(project: Project, texts: Iterable[str]) -> tuple[Mod, ...]:
    """Reads each mod once, in the order given. Raises UsageError that names all missing mods, or else FileProblemsError
    with the problems of all invalid mods."""
    names, existing = dict.fromkeys(map(name_of, texts)), mod_names(project)
    if unknown := [_unknown(project, name, existing) for name in names if name not in existing]:
        hints = "\n".join(dict.fromkeys(error.hint for error in unknown))
        raise UsageError("\n".join(error.message for error in unknown), hint=hints)
    mods, problems = readable_mods(project, names)
    require_no_problems(problems)
    return mods


def readable_mods(project: Project, names: Iterable[str] | None = None) -> tuple[tuple[Mod, ...], tuple[Problem, ...]]:
    """Reads the mods ``names``, or all mods of the project. Returns the valid mods, and the problems of the others."""
    mods: list[Mod] = []
    problems: list[Problem] = []
    for name in mod_names(project) if names is None else names:
        try:
            mods.append(load_mod(project, name))
        except FileProblemsError as error:
            problems.extend(error.problems)
    return tuple(mods), tuple(problems)


def unknown_mods(project: Project, texts: Iterable[str], location: Callable[[int], Location]) -> Iterator[Problem]:
    """A problem for each of ``texts`` (``mods/NAME`` or ``NAME``) that names no mod of the project. ``location``
    returns the location of the text with a given index."""
    existing = mod_names(project)
    for index, name in enumerate(map(name_of, texts)):
        if name not in existing:
            yield Problem(location(index), no_mod(name, existing, remedy(project, name)))


def no_mod(name: str, existing: Collection[str], remedy: str = "") -> str:
    """The message for a file that names the mod ``name``, which is not among the ``existing`` mods. ``remedy`` says how
    to get the mod, if that is known."""
    # Only a name that is nearly the same is suggested.
    suggestion = remedy or did_you_mean(name, existing, code=True, near=0.88)
    return f"no mod `{name}` in mods/; {suggestion or '`builder mods add ADDRESS` copies it from its repository'}"


# The files of a mod. Only plain files inside the mod are accepted. The same mod gives the same bytes on every checkout:
# text has the line ends that git stores (LF), and of a file's mode only the owner's execute bit counts.

DESCRIPTION = "mod.yaml"
# Tools leave these in a working folder.
LITTER = frozenset({".git", ".DS_Store", "__MACOSX", "__pycache__"})
# These files are not part of the change that a mod makes.
_NOT_BAKED = LITTER | {DESCRIPTION, "README.md"}
LARGEST_FILE = 64 * 1024 * 1024
LARGEST_MOD = 256 * 1024 * 1024
MOST_FILES = 10_000
_REMEDY = (
    "publish larger files as a Python package and name it in `packages`, or download them in a script with"
    " `network: true`"
)
# Zip: the flag of an encrypted entry, and the system whose entries have file modes.
_ENCRYPTED = 0x1
_UNIX = 3
_KIND, _LINK = 0o170000, 0o120000
_CRLF = "its lines end in CRLF, but a shell reads the CR as a part of the last word; save the file with LF (`dos2unix`)"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class PlainFile:
    """A file: its path relative to the folder that is read, its execute bit, and its bytes."""

    path: str
    executable: bool
    content: bytes


@dataclass(frozen=True)
class ModContents:
    """The text of a mod's mod.yaml (None if missing), the name of that file in errors, and the files sorted by path."""

    yaml_file: str
    yaml: str | None
    files: tuple[PlainFile, ...]


def read_folder(folder: Path, shown: str) -> ModContents:
    """Reads the mod in ``folder``; errors call it ``shown``. Raises FileProblemsError with all problems of its
    files."""
    return _contents(shown, "", read_plain_files(folder, shown, _NOT_BAKED - {DESCRIPTION}))


def _contents(shown: str, top: str, files: Collection[PlainFile]) -> ModContents:
    """The mod in ``files``, which are in the folder ``top`` of a zip. Text gets the line ends that git stores."""
    is_script = {file.path: file.path.endswith(".sh") or file.content.startswith(b"#!") for file in files}
    wrong = (file.path for file in files if is_script[file.path] and b"\r\n" in file.content)
    require_no_problems(Problem(Location(f"{shown}/{top}{path}"), _CRLF) for path in wrong)
    name = f"{shown}/{top}{DESCRIPTION}"
    text = next((decoded(file.content, name) for file in files if file.path == DESCRIPTION), None)
    baked = [
        replace(file, content=_as_stored(file.content)) for file in files if not _NOT_BAKED & {*file.path.split("/")}
    ]
    return ModContents(name, text, tuple(sorted(baked, key=lambda file: file.path.split("/"))))


def read_plain_files(folder: Path, shown: str, left_out: Collection[str] = LITTER) -> tuple[PlainFile, ...]:
    """Reads the files in ``folder``, sorted by path; errors call the folder ``shown``. Skips files and folders whose
    names are in ``left_out``. Raises FileProblemsError with all problems. Files that are too large are not read."""
    files: list[PlainFile] = []
    wrong: list[Problem] = []
    real, room = os.path.realpath(folder), LARGEST_MOD
    paths: list[Path] = []
    unread: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=unread.append):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        paths += [Path(parent, name) for name in (*names, *links) if name not in left_out]
        folders[:] = set(folders) - set(left_out)
    for error in unread:
        inside = os.path.relpath(error.filename, folder)
        wrong.append(Problem(Location(f"{shown}/{inside}"), f"this folder cannot be read: {error.strerror}"))
    for path in sorted(paths):
        inside = path.relative_to(folder).as_posix()
        try:
            if not (message := unfit_name(inside) or _unfit_file(path, real, room)):
                files.append(PlainFile(inside, bool(path.stat().st_mode & 0o100), path.read_bytes()))
                room -= len(files[-1].content)
        except OSError as error:
            message = str(error.strerror)
        if message:
            wrong.append(Problem(Location(f"{shown}/{inside}".encode(errors="replace").decode()), message))
    require_no_problems([*wrong, *_too_many(len(files), shown)])
    return tuple(sorted(files, key=lambda file: file.path))


def read_zip(path: Path, shown: str) -> ModContents:
    """Reads the mod in the zip file ``path``; errors call it ``shown``. Its files are at the top, or all in one folder.
    Raises FileProblemsError with all problems: paths that leave the zip, links, encryption, and too large files."""
    import zipfile

    files: dict[str, PlainFile] = {}
    wrong: list[Problem] = []
    room = LARGEST_MOD
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            require_no_problems(_too_many(len(entries), shown))
            for entry in entries:
                name = entry.filename
                mode = entry.external_attr >> 16 if entry.create_system == _UNIX else 0
                message = unfit_name(name) or _unfit_entry(entry, mode, room)
                if message or name in files:
                    wrong.append(Problem(Location(f"{shown}/{name}"), message or "the zip contains this file twice"))
                else:
                    # The stated size may be wrong: at most that many bytes are read, and zipfile compares the CRC.
                    files[name] = PlainFile(name, bool(mode & 0o100), archive.open(name).read(entry.file_size))
                room -= entry.file_size
    except zip_errors() as error:
        raise FileProblemsError((Problem(Location(shown), f"this zip file cannot be read: {error}"),)) from None
    wrong += (Problem(Location(f"{shown}/{name}"), reason) for name, reason in sorted(ambiguous_names(files).items()))
    require_no_problems(wrong)
    # NAME/ if all files are in that one folder.
    own = [parts for name in files if (_NOT_BAKED - {DESCRIPTION}).isdisjoint(parts := name.split("/"))]
    tops = {parts[0] for parts in own}
    top = f"{tops.pop()}/" if len(tops) == 1 and all(len(parts) > 1 for parts in own) else ""
    return _contents(shown, top, [replace(file, path=name.removeprefix(top)) for name, file in files.items()])


def folders_of(paths: Iterable[str]) -> set[str]:
    """All folders of the relative ``paths``."""
    return {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}


def ambiguous_names(files: Collection[str]) -> dict[str, str]:
    """The paths that are both a file and a folder, each with that reason: no disk can hold both."""
    return dict.fromkeys(folders_of(files) & set(files), "both a file and a folder")


def unfit_name(name: str) -> str:
    """The reason why a mod's file cannot have this name; empty if it can."""
    try:
        longest = max(len(part) for part in name.encode().split(b"/"))
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    if longest > LONGEST_NAME:
        return f"its name has more than {LONGEST_NAME} bytes; rename it"
    return "its name has a control character; rename it" if _CONTROL.search(name) else ""


def _unfit_file(path: Path, folder: str, room: int) -> str:
    """The reason why ``path`` cannot be a file of a mod that has ``room`` bytes left; empty if it can."""
    if not Path(os.path.realpath(path)).is_relative_to(folder):
        return "a link that leaves the mod's folder; copy the file into the mod"
    if path.is_dir():
        return "a link to a folder; copy the folder into the mod"
    if not path.is_file():
        return "not a file; a mod contains plain files only"
    return _too_large(path.stat().st_size, room)


def _too_large(size: int, room: int) -> str:
    if size > LARGEST_FILE:
        return f"the file has {size:,} bytes, but a mod's file has at most {LARGEST_FILE:,}: {_REMEDY}"
    if size > room:
        return f"with this file of {size:,} bytes the mod has more than {LARGEST_MOD:,} bytes: {_REMEDY}"
    return ""


def _too_many(count: int, shown: str) -> Iterator[Problem]:
    if count > MOST_FILES:
        yield Problem(Location(shown), f"the mod has {count:,} files, but at most {MOST_FILES:,} are allowed")


def _as_stored(content: bytes) -> bytes:
    """The bytes that git stores with ``text=auto``: text has LF line ends. Content without NUL and without lone CR is
    text (gitattributes(5), ``convert.c``)."""
    unix = content.replace(b"\r\n", b"\n")
    return content if b"\0" in content or b"\r" in unix else unix


def _unfit_entry(entry: zipfile.ZipInfo, mode: int, room: int) -> str:
    parts = entry.filename.split("/")
    if "\\" in entry.filename or entry.filename.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
        return "a path that leaves the mod's folder"
    if mode & _KIND == _LINK:
        return "a link; a mod in a zip contains plain files only"
    if entry.flag_bits & _ENCRYPTED:
        return "the file is encrypted; create the zip again without a password"
    return _too_large(entry.file_size, room)


# Problems of a mod that the schema cannot find.

# When an image serves, folders of the host are mounted over these folders and hide their files.
HOST_MOUNTS = (
    "/root/.cache/huggingface",
    "/root/.cache/vllm",
    "/root/.cache/b12x",
    "/root/.cache/flashinfer",
    "/root/.tilelang",
    "/root/.triton",
)
# The name of a fetched file becomes part of a path here.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")
_TEMPLATES = (".jinja", ".jinja2")
# Mounts of the build: the image does not keep files that are written there.
_BUILD_MOUNTS = ("/dev", "/proc", "/run/builder", "/sys")


def _problems(mod: Mod) -> Iterator[tuple[YamlPath, str]]:
    """The problems of ``mod``, each with its path in mod.yaml."""
    yield from _wrong_files(mod)
    packages = [canonical(re.split(r"[\[=]", text, maxsplit=1)[0]) for text in mod.packages]
    for index, package in enumerate(packages):
        if (first := packages.index(package)) < index:
            yield (
                ("packages", index),
                f"{mod.packages[index]}: the mod also lists {mod.packages[first]}; remove one of them",
            )
    if mod.run is None and any(file.path == "run.sh" for file in mod.files):
        yield (), "nothing runs the file run.sh; write `run: run.sh`, or remove the file"
    elif not (mod.run or mod.copies or mod.patches or mod.packages or mod.env):
        yield (), "the mod changes nothing: add `files`, `patches`, `packages`, `run` or `env`"
    if mod.packages and not mod.network:
        yield ("network",), "`packages` are downloaded and need the network: remove `network: false`"
    for key, names in (("conflicts", mod.conflicts), ("after", mod.after)):
        if mod.name in names:
            yield (key, names.index(mod.name)), f"a mod cannot name itself under `{key}`: remove {mod.name}"
    for index, copy in enumerate(mod.copies):
        for key, message in _wrong_copy(copy, mod.name):
            yield ("files", index, key), message
    yield from _wrong_ranges(mod)


def require_templates(mods: Iterable[Mod]) -> None:
    require_no_problems(problem for mod in mods for problem in template_problems(mod))


def template_problems(mod: Mod) -> Iterator[Problem]:
    """A problem for each chat template of ``mod`` that the server could not compile, including fetched templates.
    Separate from the other problems: compiling needs a slow import, which listing mods avoids."""
    files: tuple[PlainFile, ...] = (*mod.files, *mod.fetched)
    for file in (file for file in files if file.path.endswith(_TEMPLATES)):
        from builder.definitions import chat_template

        if fault := chat_template.fault(file.content):
            line, reason = fault
            path = file_name(f"/{file.path}") if file.path.startswith(f"{FETCHED}/") else file.path
            yield Problem(Location(f"mods/{mod.name}/{path}", line), f"this chat template does not compile: {reason}")


def _wrong_copy(copy: FileCopy, mod_name: str) -> Iterator[tuple[str, str]]:
    """The problems of ``copy``, each with its key."""
    plain = re.sub(r"/(?:\.?/)+", "/", f"{copy.to}/")
    hidden = [folder for folder in (*HOST_MOUNTS, *_BUILD_MOUNTS) if plain.startswith(f"{folder}/")]
    if ".." in copy.to.split("/"):
        yield "to", f"{copy.to}: a path cannot contain `..`"
    elif hidden and hidden[0] in HOST_MOUNTS:
        message = f"when the image serves, a folder of the host is mounted over {hidden[0]}; copy the file elsewhere"
        yield "to", f"{copy.to}: {message}"
    elif hidden:
        yield "to", f"{copy.to}: an image does not keep files below {hidden[0]}"
    if copy.is_remote and not _FILE_NAME.fullmatch(file_name(copy.source)):
        yield "from", f"{copy.source}: an address must end with a file name of letters, digits and . _ + -"
    elif copy.is_remote and not copy.sha256:
        message = f"has no sha256; `builder mods pin {mod_name}` downloads the file and writes its digest"
        yield "from", f"{copy.source} {message}"
    elif copy.sha256 and not copy.is_remote:
        yield "sha256", "only a file from an address can have a sha256; remove it"


def _wrong_files(mod: Mod) -> Iterator[tuple[YamlPath, str]]:
    files = {file.path: file.content for file in mod.files}
    folders = folders_of(files)
    named: list[tuple[YamlPath, str]] = [(("run",), mod.run)] if mod.run else []
    named += [(("check", index, "run"), check.run) for index, check in enumerate(mod.checks) if check.run]
    named += [(("patches", index, "file"), patch.file) for index, patch in enumerate(mod.patches)]
    named += [(("files", index, "from"), copy.source) for index, copy in enumerate(mod.copies) if not copy.is_remote]
    for at, name in named:
        if name.startswith("/") or ".." in name.split("/"):
            yield at, f"{name} leaves the mod's folder; copy the file into the mod"
        elif name not in files and not (at[0] == "files" and name in folders):
            yield at, f"no file {name} in mods/{mod.name}"
        elif at[0] == "check" and (b"\0" in files[name] or len(files[name]) >= LONGEST_ARGUMENT):
            yield at, f"a check must be a text file of less than {LONGEST_ARGUMENT >> 10} KiB"


def _wrong_ranges(mod: Mod) -> Iterator[tuple[YamlPath, str]]:
    ranges: list[tuple[YamlPath, str, str]] = [(("requires", name), name, text) for name, text in mod.requires.items()]
    required = set(map(canonical, mod.requires))
    for index, patch in enumerate(mod.patches):
        if patch.version:
            ranges.append((("patches", index, "version"), patch.package, patch.version))
            if (package := canonical(patch.package)) not in required:
                yield ranges[-1][0], f"a patch with `version` also needs {package} under `requires`"
    if not ranges:
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for at, name, text in ranges:
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            yield at, f"{name}: {text!r} is not a version range in pip's syntax, such as >=0.19,<0.23"


# Known sources of mods that recipes name and a project lacks.

_KNOWN_SOURCES = Path(__file__).with_name("known_sources.yaml")


def read_known_sources(project: Project) -> dict[str, str]:
    """The addresses of mods by name, as `builder mods add` accepts them. Shipped addresses name a fixed commit;
    builder.yaml overrides them."""
    shipped = yaml_file.load(_KNOWN_SOURCES.read_text(encoding="utf-8"), _KNOWN_SOURCES.name)
    sources = {name: f"{each['repository']}//mods/{name}@{each['commit']}" for each in shipped for name in each["mods"]}
    with suppress(FileProblemsError):  # code that needs builder.yaml reports its problems
        sources |= configuration.load_configuration(project).mod_sources
    return sources


def remedy(project: Project, name: str) -> str:
    """A sentence with the command that adds the mod ``name``; empty if no source of the mod is known."""
    address = read_known_sources(project).get(name)
    if address is None:
        return ""
    has_its_name = address.endswith(f"/{name}") or f"/{name}@" in address
    renamed = "" if has_its_name else f" --as {name}"
    return f"`builder mods add {shlex.quote(address)}{renamed}` copies it from its known source"


# Facts about the script of a mod, read from its text. A script can do anything: these are hints.

PATCHES = (".patch", ".diff")
_SCRIPTS = (".sh", ".bash", ".py")
# Larger scripts are not searched. Longer lines are cut: they contain data, and would slow down the patterns below.
_LARGEST = 1024 * 1024
_LONGEST_LINE = 1000

_HEREDOC = re.compile(r"(<<-?\s*(['\"]?)(\w+)\2.*\n)(?:.*\n)*?(?:[ \t]*\3[ \t]*$|\Z)", re.MULTILINE)
_DOWNLOADS = re.compile(
    r"\b(?:(?P<program>curl|wget)[ \t]+\S|(?P<git>git)[ \t]+clone\b|(?P<pip>pip)3?[ \t]+(?:install|download)\b"
    r"|(?P<hf>hf|huggingface-cli)[ \t]+download\b|(?P<apt>apt(?:-get)?)[ \t]+(?:-\S+[ \t]+)*(?:install|update)\b)"
)
_DROP_CACHES = "/proc/sys/vm/drop_caches"
# Settings of the machine: a file to which the script writes, or a program that changes settings.
_SETTING = re.compile(
    r"(?:>[ \t]*|\btee[ \t]+(?:-a[ \t]+)?)[\"']?(?P<path>/(?:proc/sys|sys)/[\w./-]+)"
    r"|(?:^|[\s;&|(])(?P<program>sysctl(?=[ \t]+(?:-\S+[ \t]+)*[\"']?[\w.]+=)"
    r"|nvidia-smi(?=[ \t]+(?:\S+[ \t]+)*(?:-pm|-pl|-lgc|-lmc|--persistence-mode|--power-limit|--lock-)))",
    re.MULTILINE,
)
# A single `&` at the end of a command starts a process; `&&`, `>&2`, `&>file` and the `&` of sed do not.
_STARTS = re.compile(
    r"(?<![&>|<\\])&[ \t]*(?:$|\)|\w+=\$!|disown\b|echo\b)|\b(?:nohup|setsid)[ ]"
    r"|(?:^|[\s;&|(])(?:systemctl[ \t]+(?:\S+[ \t]+)*(?:start|enable)|service[ \t]+\S+[ \t]+start|crontab)\b",
    re.MULTILINE,
)
_WAITS = re.compile(r"(?:^|[\s;])wait(?:$|[\s;])", re.MULTILINE)

_PRINTED = r"\"(?:[^\"`$]|\$\w)*\"|'[^']*'|(?:[^\s|<>;&`$\"']|\$\w)+"
_PRINTS = re.compile(rf"(?:set\s[^|;&]*|(?:echo|printf)(?:\s+(?:{_PRINTED}))*|exit\b.*|true|:|cd\s[^|;&]*)?")
_COPIES = re.compile(r"(?:cp|mkdir|install)\s[^|;&`]*")
# Programs with which a script could change files.
_CHANGES = re.compile(
    r"\b(?:cp|mv|ln|rm|mkdir|touch|install|sed|awk|perl|patch|git|python3?|pip3?|uv|tar|unzip|curl|wget|hf|apt|apt-get|dpkg"
    r"|chmod|chown|find|rsync|dd|make|cmake|ninja|source|exec|eval|tee\s+(?!/proc|/dev))\b|\./|\.sh\b"
)


class RunTimeUse(NamedTuple):
    """An effect of a script that no image keeps: it ``does`` something (`starts a process …`); do this ``instead``."""

    does: str
    instead: str


@dataclass(frozen=True)
class ScriptFacts:
    """Facts about the script ``name``. ``patches`` are the mod's patch files that the script names, in its order;
    ``unnamed`` are the others. ``downloads`` are the programs with which it downloads. ``only_copies`` is true if it
    only copies files, ``changes_nothing`` if it changes nothing in an image."""

    name: str
    only_copies: bool
    changes_nothing: bool
    patches: tuple[str, ...]
    unnamed: tuple[str, ...]
    downloads: tuple[str, ...]
    run_time: tuple[RunTimeUse, ...]

    @property
    def instead(self) -> str:
        """Advice on replacing the effects that no image keeps; empty if the script has no such effect."""
        does = " and ".join(use.does for use in self.run_time)
        advice = "; ".join(dict.fromkeys(use.instead for use in self.run_time if use.instead))
        return f"{self.name} {does}, which no image keeps. Instead: {advice}" if does else ""


def read_script_facts(mod: Mod) -> ScriptFacts | None:
    """Reads the facts about the script of ``mod``. None if it has no script."""
    if mod.run is None:
        return None
    scripts = [file for file in mod.files if file.path == mod.run or file.path.endswith(_SCRIPTS)]
    texts = {file.path: _without_comments(file.content) for file in scripts if len(file.content) <= _LARGEST}
    commands = texts.pop(mod.run, "")
    every = "\n".join([commands, *texts.values()])
    declared = {patch.file for patch in mod.patches}
    beside = [file.path for file in mod.files if file.path.endswith(PATCHES) and file.path not in declared]
    places: dict[str, int] = {}
    for path in beside:  # a script names a patch by its file name, or by a pattern such as *.patch
        if named := re.search(rf"{re.escape(Path(path).name)}|\*{re.escape(Path(path).suffix)}", every):
            places[path] = named.start()
    only_prints = _consists_of(commands, _PRINTS)
    prints_text = only_prints and bool(re.search("echo|printf", commands))
    settings = dict.fromkeys(match["path"] or match["program"] for match in _SETTING.finditer(commands))
    shell = _HEREDOC.sub(r"\1", commands)
    return ScriptFacts(
        name=mod.run,
        only_copies=_consists_of(commands, _PRINTS, _COPIES) and not only_prints,
        # The script only prints, or it drops caches and runs no program that could change an image.
        changes_nothing=prints_text or (_DROP_CACHES in commands and not only_prints and not _CHANGES.search(commands)),
        patches=tuple(sorted(places, key=lambda path: (places[path], path))),
        unnamed=tuple(path for path in beside if path not in places),
        downloads=tuple(dict.fromkeys(match[match.lastgroup or 0] for match in _DOWNLOADS.finditer(every))),
        run_time=tuple(_run_time(prints_text, settings, bool(_STARTS.search(shell) and not _WAITS.search(shell)))),
    )


def _run_time(prints_text: bool, settings: Collection[str], starts_process: bool) -> Iterator[RunTimeUse]:
    if prints_text:
        yield RunTimeUse("only prints text", "remove the mod; it changes nothing")
    if _DROP_CACHES in settings:
        loop = f"sudo sh -c 'while sleep 60; do sync; echo 3 > {_DROP_CACHES}; done'"
        instead = f"while a model loads, run this on the machine that serves it: `{loop}`"
        yield RunTimeUse(f"writes {_DROP_CACHES}", instead)
    if others := [each for each in settings if each != _DROP_CACHES]:
        instead = "set it on each machine that serves, as root: in /etc/sysctl.d, or with systemd"
        yield RunTimeUse(f"changes settings of the machine ({', '.join(others)})", instead)
    if starts_process:
        instead = "start it with the server, in the recipe's command (`helper & exec vllm serve …`)"
        # The advice about dropping caches is already a loop, so nothing else must run with the server.
        instead = "" if _DROP_CACHES in settings else f"{instead}, or on the host with systemd"
        yield RunTimeUse("starts a process that outlives the script", instead)


def _consists_of(commands: str, *patterns: re.Pattern[str]) -> bool:
    return all(any(pattern.fullmatch(line.strip()) for pattern in patterns) for line in commands.splitlines())


def _without_comments(script: bytes) -> str:
    lines = script.decode("utf-8", "replace").replace("\\\n", " ").splitlines()
    return "\n".join("" if line.lstrip().startswith("#") else line[:_LONGEST_LINE] for line in lines)


# Writing the digest of a file from an address into mod.yaml. The other text is unchanged.


def with_digest(text: str, file: str, index: int, sha256: str) -> str:
    """Returns the text of the mod.yaml ``file`` with the digest of its file number ``index`` (from 0). Raises
    FileProblemsError if the digest cannot be added to the text as it is written."""
    wanted = yaml_file.load(text, file)
    wanted["files"][index]["sha256"] = sha256
    changed = yaml_file.with_values(text, {("files", index, "sha256"): sha256}, wanted)
    if changed is None:
        message = f"the digest cannot be added here; add it by hand: sha256: {sha256}"
        raise FileProblemsError((Problem(yaml_file.location_of(("files", index), text, file), message),))
    return changed
