"""The files of a mod: read from its folder, or from a zip of one, into memory, with nothing let in that is not a plain
file of it.

The same mod gives the same bytes on every checkout: line ends of text are those that git stores (LF), and of the modes
only the owner's execute bit counts, whatever the umask was.
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
# What describes a mod, or lies about in a working folder, is no part of the change that it makes.
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
    """One file of a mod: its path within the mod, whether it may be executed, and its bytes."""

    path: str
    executable: bool
    content: bytes


@dataclass(frozen=True)
class ModContents:
    """What a mod is made of: the text of its mod.yaml, or None where it has none, and its files by path. ``yaml_file``
    is what errors call the mod.yaml, ``place`` what they call the mod."""

    place: str
    yaml_file: str
    yaml: str | None
    files: tuple[ModFile, ...]


def read_folder(folder: Path, shown: str) -> ModContents:
    """The mod in ``folder``, called ``shown`` in errors.

    Raises FileProblemsError with all that is wrong with its files; one that is too large is not read.
    """
    found: list[ModFile] = []
    wrong: list[Problem] = []
    real, room = os.path.realpath(folder), LARGEST_MOD
    for path in _below(folder):
        inside = path.relative_to(folder)
        if not _NOT_BAKED.isdisjoint(inside.parts):
            continue
        said = _unfit_name(inside.as_posix()) or _unfit_file(path, real, room)
        if said:
            wrong.append(Problem(Location(_printable(f"{shown}/{inside}")), said))
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
        found.append(ModFile(inside.as_posix(), executable, _as_stored(content)))
    if len(found) > MOST_FILES:
        wrong.append(Problem(Location(shown), f"{len(found):,} files; a mod has at most {MOST_FILES:,}"))
    if wrong:
        raise FileProblemsError(tuple(wrong))
    described, name = folder / DESCRIPTION, f"{shown}/{DESCRIPTION}"
    text = read_text(described, name) if described.is_file() else None
    return ModContents(shown, name, text, _sorted(found))


def read_zip(path: Path, shown: str) -> ModContents:
    """The mod in the zip file ``path``: its files at the top, or all in one folder.

    Raises FileProblemsError with all that is wrong with it: among others names that lead out of it, links, encryption,
    and files that are larger than they may be or say they are.
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
    """All that is not a folder, links to folders included, in a fixed order; what is not baked is not walked."""
    found: list[Path] = []
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        found += [here / name for name in files]
        found += [here / name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(set(folders) - _NOT_BAKED)
    return sorted(found)


def _sorted(files: Iterable[ModFile]) -> tuple[ModFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path.split("/")))


def _unfit_name(name: str) -> str:
    """Why no file of a mod may be called so, or nothing."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    return "its name holds a control character; rename it" if _CONTROL.search(name) else ""


def _unfit_file(path: Path, folder: str, room: int) -> str:
    """Why the file at ``path`` is no part of a mod that has ``room`` bytes left, or nothing."""
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
    """The bytes as git stores them with ``text=auto``: text with LF, whatever a checkout made of it.

    Text is what has no NUL and no lone CR (gitattributes(5), ``convert.c``).
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
        said = _unfit_name(entry.filename) or _unfit_entry(entry, room)
        if entry.filename in seen:
            said = said or "it is in the zip twice"
        seen.add(entry.filename)
        room -= entry.file_size
        if said:
            yield Problem(Location(_printable(f"{shown}/{entry.filename}")), said)


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
    """``NAME/`` where everything lies in that one folder, else nothing."""
    own = [name.split("/") for name in names if (_NOT_BAKED - {DESCRIPTION}).isdisjoint(name.split("/"))]
    tops = {parts[0] for parts in own}
    return f"{tops.pop()}/" if len(tops) == 1 and all(len(parts) > 1 for parts in own) else ""


def _from_zip(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, top: str, shown: str) -> ModFile:
    with archive.open(entry) as file:
        # The size that an entry states is only what it says: no more than that is read, and zipfile compares the CRC.
        content = file.read(entry.file_size)
    if _is_script(entry.filename, content) and b"\r\n" in content:
        raise FileProblemsError((Problem(Location(f"{shown}/{entry.filename}"), _CRLF),))
    executable = entry.create_system == _UNIX and bool((entry.external_attr >> 16) & 0o100)
    return ModFile(entry.filename.removeprefix(top), executable, _as_stored(content))


def _printable(text: str) -> str:
    return _CONTROL.sub("?", text.encode(errors="replace").decode())
