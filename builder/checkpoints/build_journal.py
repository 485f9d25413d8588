"""The journal of a build that is under way: the files of the result that are whole, so that the next try goes on from
there, whatever ended this one."""

from __future__ import annotations

import json
import os
import re
import threading
from typing import TYPE_CHECKING

from builder.checkpoints.record import RecordedFile
from builder.storage.atomic_file import sync_folder

if TYPE_CHECKING:
    from pathlib import Path

_DIGEST = re.compile("sha256:[0-9a-f]{64}")


class BuildJournal:
    """The finished files by name; each is a line of the file, on the disk before it counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.finished = _read(path)

    def add(self, name: str, file: RecordedFile) -> None:
        """Writes down that a file is whole and on the disk."""
        line = json.dumps([name, file.size, file.digest, file.header]).encode() + b"\n"
        with self._lock:
            is_new = not self._path.exists()
            with self._path.open("ab", buffering=0) as journal:
                journal.write(line)
                os.fsync(journal.fileno())
            if is_new:
                sync_folder(self._path.parent)
            self.finished[name] = file


def _read(path: Path) -> dict[str, RecordedFile]:
    """The finished files; a last line that was cut off, as by a kill, counts for nothing, nor does any after it."""
    finished: dict[str, RecordedFile] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    for line in lines[:-1]:
        try:
            name, size, digest, header = json.loads(line)
            if not (isinstance(name, str) and type(size) is int and _DIGEST.fullmatch(digest)):
                break
        except (ValueError, TypeError):
            break
        finished[name] = RecordedFile(size, digest, header)
    return finished
