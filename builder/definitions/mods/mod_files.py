"""The files of a mod, read into memory from its folder or from a zip of it; only plain files of its own are accepted.

The same mod gives the same bytes on every checkout: text has the line ends that git stores (LF), and only the owner's
execute bit counts of the modes, whatever the umask was.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions.reading import read_text
from builder.errors import FileProblemsError, Location, Problem

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable

DESCRIPTION = "mod.yaml"
# Files that describe a mod, or that tools leave in a working folder, are no part of the change that it makes.
_NOT_BAKED = frozenset({DESCRIPTION, "README.md", ".git", ".DS_Store", "__MACOSX", "__pycache__"})
LARGEST_FILE = 64 * 1024 * 1024
LARGEST_MOD = 256 * 1024 * 1024
MOST_FILES = 10_000
_REMEDY = "what is larger belongs into `packages`, or is downloaded by a script with `network: true`"
# Zip: the bit of an encrypted entry, and the system whose entries carry modes.
_ENCRYPTED = 0x1
_UNIX = 3
_KIND, _LINK = 0o170000, 0o120000
_CRLF = "its lines end in CRLF, and a shell takes the CR for a part of the last word; save it with LF (`dos2unix`)"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class ModFile:
    """A file of a mod: its path within the mod, its execute bit, and its bytes."""

    path: str
    executable: bool
    content: bytes


@dataclass(frozen=True)
class ModContents:
    """The contents of a mod: the text of its mod.yaml (None where it has none), and its files sorted by path. Errors
    call the mod ``shown`` and its mod.yaml ``yaml_file``."""

    shown: str
    yaml_file: str
    yaml: str | None
    files: tuple[ModFile, ...]


def read_folder(folder: Path, shown: str) -> ModContents:
    """Reads the mod in ``folder``, which errors call ``shown``.

    Raises FileProblemsError with every problem of its files; a file that is too large is not read.
    """
    files: list[ModFile] = []
    wrong: list[Problem] = []
    real, room = os.path.realpath(folder), LARGEST_MOD
    for path in _below(folder):
        inside = path.relative_to(folder)
        if not _NOT_BAKED.isdisjoint(inside.parts):
            continue
        message = _unfit_name(inside.as_posix()) or _unfit_file(path, real, room)
        if message:
            wrong.append(Problem(Location(_printable(f"{shown}/{inside}")), message))
            continue
        try:
            content = path.read_bytes()
            executable = bool(path.stat().st_mode & 0o100)
        except OSError as error:
            wrong.append(Problem(Location(f"{shown}/{inside}"), str(error.strerror)))
            continue
        room -= len(content)
        if _is_script(path.name, content) and b"\r\n" in content:
            wrong.append(Problem(Location(f"{shown}/{inside}"), _CRLF))
        files.append(ModFile(inside.as_posix(), executable, _as_stored(content)))
    if len(files) > MOST_FILES:
        wrong.append(Problem(Location(shown), f"{len(files):,} files; a mod has at most {MOST_FILES:,}"))
    if wrong:
        raise FileProblemsError(tuple(wrong))
    described, name = folder / DESCRIPTION, f"{shown}/{DESCRIPTION}"
    text = read_text(described, name, folder) if described.is_file() else None
    return ModContents(shown, name, text, _sorted(files))


def read_zip(path: Path, shown: str) -> ModContents:
    """Reads the mod in the zip file ``path``, with its files at the top or all in one folder; errors call it ``shown``.

    Raises FileProblemsError with every problem of it: among others paths that leave it, links, encryption, and files
    that are larger than allowed or than they claim.
    """
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            wrong = tuple(_unfit_entries(entries, shown))
            if wrong:
                raise FileProblemsError(wrong)
            top = _top_folder([entry.filename for entry in entries])
            files = [_from_zip(archive, entry, top, shown) for entry in entries]
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError) as error:
        raise FileProblemsError((Problem(Location(shown), f"not a zip file that can be read: {error}"),)) from None
    name = f"{shown}/{top}{DESCRIPTION}"
    text = next((file.content for file in files if file.path == DESCRIPTION), None)
    try:
        yaml = None if text is None else text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileProblemsError((Problem(Location(name), "not UTF-8 text"),)) from None
    return ModContents(shown, name, yaml, _sorted(f for f in files if _NOT_BAKED.isdisjoint(f.path.split("/"))))


def _below(folder: Path) -> list[Path]:
    """All files and links below ``folder`` in a fixed order, without the folders that are not baked."""
    paths: list[Path] = []
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        paths += [here / name for name in files]
        paths += [here / name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(set(folders) - _NOT_BAKED)
    return sorted(paths)


def _sorted(files: Iterable[ModFile]) -> tuple[ModFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path.split("/")))


def _unfit_name(name: str) -> str:
    """The reason why no file of a mod may have this name, or nothing."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    return "its name holds a control character; rename it" if _CONTROL.search(name) else ""


def _unfit_file(path: Path, folder: str, room: int) -> str:
    """The reason why ``path`` cannot be a file of a mod that has ``room`` bytes left, or nothing."""
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(folder):
        return "a link that leaves the mod's folder; copy the file in"
    if not path.is_file():
        return "a link to a folder; copy the folder in" if path.is_dir() else "not a file; a mod holds plain files"
    return _too_large(path.stat().st_size, room)


def _too_large(size: int, room: int) -> str:
    if size > LARGEST_FILE:
        return f"{size:,} bytes; a mod's files have at most {LARGEST_FILE:,}: {_REMEDY}"
    if size > room:
        return f"with its {size:,} bytes the mod has more than {LARGEST_MOD:,}: {_REMEDY}"
    return ""


def _as_stored(content: bytes) -> bytes:
    """The bytes as git stores them with ``text=auto``: text with LF, whatever the checkout converted it to.

    Content without a NUL and without a lone CR is text (gitattributes(5), ``convert.c``).
    """
    if b"\r\n" not in content or b"\0" in content:
        return content
    unix = content.replace(b"\r\n", b"\n")
    return content if b"\r" in unix else unix


def _is_script(name: str, content: bytes) -> bool:
    return name.endswith(".sh") or content.startswith(b"#!")


def _unfit_entries(entries: list[zipfile.ZipInfo], shown: str) -> Iterable[Problem]:
    room = LARGEST_MOD
    seen: set[str] = set()
    if len(entries) > MOST_FILES:
        yield Problem(Location(shown), f"{len(entries):,} files; a mod has at most {MOST_FILES:,}")
        return
    for entry in entries:
        message = _unfit_name(entry.filename) or _unfit_entry(entry, room)
        if entry.filename in seen:
            message = message or "it is in the zip twice"
        seen.add(entry.filename)
        room -= entry.file_size
        if message:
            yield Problem(Location(_printable(f"{shown}/{entry.filename}")), message)


def _unfit_entry(entry: zipfile.ZipInfo, room: int) -> str:
    parts = entry.filename.split("/")
    if "\\" in entry.filename or entry.filename.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
        return "a path that leaves the mod's folder"
    if entry.create_system == _UNIX and (entry.external_attr >> 16) & _KIND == _LINK:
        return "a link; a mod in a zip holds plain files"
    if entry.flag_bits & _ENCRYPTED:
        return "it is encrypted"
    return _too_large(entry.file_size, room)


def _top_folder(names: list[str]) -> str:
    """``NAME/`` if everything lies in that one folder, else nothing."""
    own = [name.split("/") for name in names if (_NOT_BAKED - {DESCRIPTION}).isdisjoint(name.split("/"))]
    tops = {parts[0] for parts in own}
    return f"{tops.pop()}/" if len(tops) == 1 and all(len(parts) > 1 for parts in own) else ""


def _from_zip(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, top: str, shown: str) -> ModFile:
    with archive.open(entry) as file:
        # An entry's size is only a claim: no more than that is read, and zipfile compares the CRC.
        content = file.read(entry.file_size)
    if _is_script(entry.filename, content) and b"\r\n" in content:
        raise FileProblemsError((Problem(Location(f"{shown}/{entry.filename}"), _CRLF),))
    executable = entry.create_system == _UNIX and bool((entry.external_attr >> 16) & 0o100)
    return ModFile(entry.filename.removeprefix(top), executable, _as_stored(content))


def _printable(text: str) -> str:
    return _CONTROL.sub("?", text.encode(errors="replace").decode())
