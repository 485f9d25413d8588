"""Differences between two files, or two folders, as text for the user."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.comparing.changes import Kind, kind_of
from builder.numbered import build_directory
from builder.plan import layout
from builder.storage import regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LARGEST = 64 * 1024
CONTEXT = 3


@dataclass(frozen=True)
class FileChange:
    """A file that differs: the lines of a unified diff without its header, or a ``note`` in their place."""

    path: str
    kind: Kind
    lines: tuple[str, ...]
    note: str


def of_folders(before: Path, after: Path) -> Iterator[FileChange]:
    """Yields the files that differ between two folders; all files if one folder is missing."""
    names = {
        path.relative_to(folder).as_posix() for folder in (before, after) for path in build_directory.files(folder)
    }
    for name in sorted(names):
        if change := of_files(before / name, after / name, name):
            yield change


def of_files(before: Path, after: Path, name: str) -> FileChange | None:
    """Returns the difference between two files; None if there is none. A file that cannot be read counts as missing."""
    old, new = _content(before), _content(after)
    if old == new:
        if old is None or _executable(before) == _executable(after):
            return None
        return of_mode(name, executable=_executable(after))
    return of_contents(old, new, name)


def of_mode(name: str, *, executable: bool) -> FileChange:
    """The difference between two files of which only one is executable."""
    return FileChange(name, "changed", (), "executable now" if executable else "is no longer executable")


def of_contents(old: bytes | None, new: bytes | None, name: str) -> FileChange:
    """The difference between the contents of two files, of which at most one is missing."""
    kind = kind_of(old, new)
    if kind != "changed":
        return FileChange(name, kind, (), f"{len(old or new or b''):,} bytes")
    lines = _lines(old or b""), _lines(new or b"")
    if lines[0] is None or lines[1] is None:
        return FileChange(name, kind, (), f"{len(old or b''):,} → {len(new or b''):,} bytes")
    diff = difflib.unified_diff(lines[0], lines[1], n=CONTEXT, lineterm="")
    return FileChange(name, kind, tuple(diff)[2:], "")


def _content(path: Path) -> bytes | None:
    try:
        return regular_file.read(path, layout.LARGEST_FILE)
    except OSError:
        return None


def _lines(content: bytes) -> list[str] | None:
    """Returns the lines of a small text file; None for anything else."""
    if len(content) > LARGEST or b"\0" in content:
        return None
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        return None
    # As in git: a text without a final line break differs from one with it.
    return lines[:-1] if not lines[-1] else [*lines[:-1], f"{lines[-1]}\n\\ No newline at the end"]


def _executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)
