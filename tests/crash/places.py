"""The places of a command: the calls by which it changes something, in the order in which it makes them.

A place is a call that changes a file below one folder, a request by which the engine changes something, and the start
and the end of a program that the command runs. What would change nothing (a folder that is there already, a file that
is not) is none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.crash.supervision import GO_ON, Fate, Pending

Kind = Literal["file", "engine", "start", "end"]
_REQUEST = re.compile(rb"(POST|PUT|DELETE|PATCH) ([^ ?]+)")
_CHANCE = re.compile(r"[0-9a-f]{6,}|\d{4,}|(?<=tmp_)(?:pack|idx)_\w+")
_HERE = -100 & 0xFFFFFFFFFFFFFFFF
_LONGEST_PATH = 4096
_PAGE = 4096
_STARTERS = {"setpriv", "env"}  # which become the program that is meant
_NEEDS_ITS_FILE = {"unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "truncate"}
_MAKES_ITS_FILE = {"mkdir", "mkdirat"}
_MAKES_A_NAME = {
    *("open", "openat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat"),
    *("mkdir", "mkdirat"),
}  # fmt: skip
_TAKES_ROOM = _MAKES_A_NAME | {
    *("write", "pwrite64", "writev", "pwritev", "sendfile", "copy_file_range", "fallocate", "ftruncate"),
    *("fsync", "fdatasync"),
}  # fmt: skip
_NEEDS_RIGHTS = _MAKES_A_NAME | {
    *("truncate", "unlink", "unlinkat", "rmdir", "chmod", "fchmodat", "chown", "fchownat", "utimensat", "execve"),
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A call that changes something: who makes it (``builder``, or the program that it runs), and what it concerns."""

    kind: Kind
    program: str
    call: str
    subject: str

    def __str__(self) -> str:
        return f"{self.program}: {self.call} {self.subject}"

    def errors(self) -> tuple[int, ...]:
        """The errors of the system that this call may meet."""
        if self.kind == "engine":
            return (errno.ECONNRESET,)
        if self.kind == "end":
            return ()
        found = [errno.EIO]
        if self.call in _TAKES_ROOM:
            found.append(errno.ENOSPC)
        if self.call in _NEEDS_RIGHTS:
            found.append(errno.EACCES)
        return tuple(found)


class Places:
    """Counts the places of one run below ``root``, and decides about each by its number, beginning with 0."""

    def __init__(self, root: Path, decide: Callable[[int, Place], Fate]) -> None:
        self._root = str(root.resolve())
        self._decide = decide
        self.found: list[Place] = []

    def decide(self, pending: Pending) -> Fate:
        """What becomes of a call."""
        place = self._place(pending)
        if place is None:
            return GO_ON
        self.found.append(place)
        return self._decide(len(self.found) - 1, place)

    def _place(self, pending: Pending) -> Place | None:
        name, process = pending.call.name, _process(pending.thread)
        is_main = process == pending.main
        program = _program(process)
        program = "builder" if program == _program(pending.main) else program
        if name == "sendto":
            request = _REQUEST.match(_memory(pending.thread, pending.arguments[1], 300)) if is_main else None
            return Place("engine", program, *_words(request)) if request else None
        if name == "execve":
            started = Path(_path(pending, "path 0"))
            is_child = _parent(process) == pending.main and started.name not in _STARTERS
            return (
                Place("start", "builder", "execve", started.name) if is_child and os.access(started, os.X_OK) else None
            )
        if name == "exit_group":
            is_child = _parent(process) == pending.main and program != "builder"
            return Place("end", program, "exit", "") if is_child else None
        return self._file_place(pending, program)

    def _file_place(self, pending: Pending, program: str) -> Place | None:
        paths = [_path(pending, subject) for subject in pending.call.subjects]
        # What buildx and git keep in a home is theirs.
        root = self._root if program == "builder" else f"{self._root}/project"
        if not all(path == root or path.startswith(f"{root}/") for path in paths):
            return None
        if not _changes_something(pending, paths):
            return None
        subject = " → ".join(_CHANCE.sub("#", os.path.relpath(path, self._root)) for path in paths)
        return Place("file", program, pending.call.name, subject)


def _changes_something(pending: Pending, paths: list[str]) -> bool:
    """False for a call that is bound to fail, and for one that is about no file."""
    name, is_there = pending.call.name, os.path.lexists(paths[0])
    if not Path(paths[-1]).parent.exists():
        return False
    if pending.call.flags is not None:
        return is_there or bool(pending.arguments[pending.call.flags] & os.O_CREAT)
    if name in _MAKES_ITS_FILE:
        return not is_there
    if name in _NEEDS_ITS_FILE:
        return is_there
    return not pending.call.subjects[0].startswith("fd") or _is_file(pending)


def _words(request: re.Match[bytes]) -> tuple[str, str]:
    method, path = (word.decode() for word in request.groups())
    return method, _CHANCE.sub("#", path)


def _is_file(pending: Pending) -> bool:
    descriptor = pending.arguments[int(pending.call.subjects[0].split()[1])]
    mode = Path(f"/proc/{pending.thread}/fd/{descriptor}").stat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _path(pending: Pending, subject: str) -> str:
    """The path that a call is about, as far as it can be told; of a descriptor that is no file, something else."""
    kind, *places = subject.split()
    arguments = [pending.arguments[int(place)] for place in places]
    if kind == "fd":
        return _link(f"/proc/{pending.thread}/fd/{arguments[0] & 0xFFFFFFFF}")
    folder = _HERE if kind == "path" else arguments[0]
    at = f"/proc/{pending.thread}/" + (
        "cwd" if folder & 0xFFFFFFFF == _HERE & 0xFFFFFFFF else f"fd/{folder & 0xFFFFFFFF}"
    )
    text = (
        os.fsdecode(_memory(pending.thread, arguments[-1], _LONGEST_PATH).partition(b"\0")[0]) if arguments[-1] else ""
    )
    return os.path.normpath(Path(_link(at), text)) if text else _link(at)


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _memory(thread: int, address: int, length: int) -> bytes:
    """Memory of another process, up to the end of what it may read."""
    pieces = b""
    with contextlib.suppress(OSError), Path(f"/proc/{thread}/mem").open("rb", buffering=0) as file:
        while len(pieces) < length and b"\0" not in pieces:  # up to the end of a page: the next may be no memory
            at = address + len(pieces)
            pieces += os.pread(file.fileno(), min(length - len(pieces), _PAGE - at % _PAGE), at)
    return pieces


def _status(process: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def _process(thread: int) -> int:
    return int(_status(thread).get("Tgid", thread))


def _parent(process: int) -> int:
    return int(_status(process).get("PPid", 0))


def _program(process: int) -> str:
    return Path(_link(f"/proc/{process}/exe")).name
