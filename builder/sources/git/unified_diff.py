"""Unified diffs: their hunks, and the hunk that a line number belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_HUNK = re.compile(r"@@ -(?P<start>\d+)(?:,(?P<old>\d+))? \+(?P<new_start>\d+)(?:,(?P<new>\d+))? @@.*")


@dataclass(frozen=True)
class Hunk:
    """A hunk: the file's name before the change, its first line before and after it (from 1), and its header."""

    file: str
    start: int
    new_start: int
    header: str


def hunks(diff: bytes, strip: int = 1) -> tuple[Hunk, ...]:
    """Returns all hunks of ``diff``, in order; ``strip`` leading folders are removed from the names. Their bodies are
    skipped by line count, as a removed line may look like a header (``--- a/x`` for ``-- a/x``)."""
    parsed: list[Hunk] = []
    lines = iter(diff.decode("utf-8", "replace").split("\n"))
    old_name = new_name = ""
    for line in lines:
        header = _HUNK.fullmatch(line.rstrip("\r"))
        if line.startswith("--- "):
            old_name = _name(line, strip)
        elif line.startswith("+++ "):
            new_name = _name(line, strip)
        elif header:
            file = new_name if old_name == "/dev/null" else old_name
            parsed.append(Hunk(file, int(header["start"]), int(header["new_start"]), line.rstrip("\r")))
            _skip_body(lines, int(header["old"] or 1), int(header["new"] or 1))
    return tuple(parsed)


def describe_hunk(diff: bytes, file: str, start: int, strip: int = 1) -> str:
    """Describes the hunk of ``file`` that starts at line ``start``: ``FILE, hunk 2 of 3 (@@ -12,7 +12,9 @@ x)``."""
    of_file = [hunk for hunk in hunks(diff, strip) if hunk.file == file]
    number = next((number for number, hunk in enumerate(of_file, start=1) if hunk.start == start), None)
    if number is None:
        return f"{file}, line {start}"
    return f"{file}, hunk {number} of {len(of_file)} ({of_file[number - 1].header})"


def _skip_body(lines: Iterator[str], old: int, new: int) -> None:
    while old > 0 or new > 0:
        line = next(lines, None)
        if line is None:
            return
        if not line.startswith("\\"):  # `\ No newline at end of file` counts on neither side
            old -= not line.startswith("+")
            new -= not line.startswith("-")


def _name(line: str, strip: int) -> str:
    """Returns the file that a ``---`` or ``+++`` line names, without its first folders, as ``patch -pN`` does."""
    name = line[4:].rstrip("\r").partition("\t")[0]
    return name if name == "/dev/null" else "/".join(name.split("/")[strip:])
