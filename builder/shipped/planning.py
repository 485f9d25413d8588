"""The files of a project held against those that come with this program: what is new, newer, edited, or gone."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from builder.errors import UnsafePathError
from builder.project import below
from builder.shipped import record as records
from builder.shipped import source
from builder.shipped.selection import LINES
from builder.storage import atomic_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.project import Project
    from builder.shipped.record import InitRecord
    from builder.shipped.source import ShippedFile

# checkpoints/NAME, dockerfiles/NAME and mods/NAME are one thing each: one that was deleted stays away as a whole.
_WHOLES = frozenset({"checkpoints", "dockerfiles", "mods"})

FileState = Literal["new", "same", "newer", "edited", "kept", "deleted"]


@dataclass(frozen=True)
class PlannedFile:
    """A file and its state in a project: ``new``; the ``same`` there; ``newer`` than the one there, which is as it was
    written; ``edited`` there since, or of unknown origin, and another one comes with this release; ``kept``, edited
    there, while nothing newer comes; or ``deleted`` there, as whatever is not there of a folder that the user
    brought. ``before`` is the content there, ``after`` the one to write."""

    file: ShippedFile
    state: FileState
    before: bytes | None
    after: bytes

    @property
    def path(self) -> str:
        return self.file.path

    def difference(self) -> tuple[str, ...]:
        """The lines of a unified diff from what is there to what comes."""
        before = (self.before or b"").decode("utf-8", "replace").splitlines()
        after = self.after.decode("utf-8", "replace").splitlines()
        return tuple(difflib.unified_diff(before, after, f"{self.path} here", f"{self.path} now", lineterm=""))


def plan(project: Project, files: Mapping[str, ShippedFile], record: InitRecord | None) -> tuple[PlannedFile, ...]:
    """Holds ``files`` against those of a project, by the ``record`` of what was written into it. Raises UnsafePathError
    where one of them leads out of the project, OSError where one cannot be read."""
    digests = record.digests if record else {}
    gone = {_whole(path) for path in digests} - {_whole(path) for path in digests if (project.root / path).exists()}
    planned = [_planned(project, file, digests, gone) for file in files.values()]
    # A folder that has other files under these names, and none of this program, is one that the user brought: a mod of
    # the same name. A file of this program in it would change what it does.
    there = {_whole(each.path) for each in planned if each.before is not None}
    ours = {_whole(each.path) for each in planned if each.state in {"same", "newer"}}
    return tuple(
        replace(each, state="deleted") if each.state == "new" and _whole(each.path) in there - ours else each
        for each in planned
    )


def _planned(project: Project, file: ShippedFile, digests: Mapping[str, str], gone: set[str]) -> PlannedFile:
    path = project.root / file.path
    before = _content(project, file)
    if file.path in LINES:
        after = _with_lines(before or b"", file.content)
        state: FileState = "same" if before == after else "new" if before is None else "newer"
        return PlannedFile(file, state, before, after)
    written = digests.get(file.path)
    if before is None:
        was_deleted = written is not None or _whole(file.path) in gone
        return PlannedFile(file, "deleted" if was_deleted else "new", None, file.content)
    if before == file.content:
        is_same = file.executable is bool(path.stat().st_mode & 0o100)
        return PlannedFile(file, "same" if is_same else "newer", before, file.content)
    if written == records.digest(before):
        return PlannedFile(file, "newer", before, file.content)
    is_news = written != records.digest(file.content)
    return PlannedFile(file, "edited" if is_news else "kept", before, file.content)


def _content(project: Project, file: ShippedFile) -> bytes | None:
    path = below(project.root, project.root / file.path)
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        raise UnsafePathError(f"{file.path} is a folder here, and a file is to be written") from None


def _with_lines(before: bytes, wanted: bytes) -> bytes:
    """``before`` with the lines of ``wanted`` that it lacks at its end."""
    lines = set(before.splitlines())
    missing = [line for line in wanted.splitlines() if line not in lines]
    if not missing:
        return before
    return b"\n".join([*([before.rstrip(b"\n")] if before.strip() else []), *missing, b""])


def _whole(path: str) -> str:
    first, *rest = PurePosixPath(path).parts
    return f"{first}/{rest[0]}" if first in _WHOLES and len(rest) > 1 else path


def is_unedited(project: Project, place: str, files: Mapping[str, bytes]) -> bool:
    """True if ``files`` (contents by path) are all that a project has at ``place``, a file or a folder of it, and are
    as this release ships them, or as `builder init` wrote them. Never in a checkout of this program, where whatever is
    there is what it ships. Raises FileProblemsError for a damaged record."""
    digests = {path: records.digest(content) for path, content in files.items()}
    record = records.read(project)
    written = record.digests if record else {}
    if digests == {path: digest for path, digest in written.items() if _is_at(path, place)}:
        return True
    shipped = source.project()
    if shipped.root.resolve() == project.root.resolve():
        return False
    return digests == {file.path: records.digest(file.content) for file in source.below(shipped.root, place)}


def _is_at(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def write(project: Project, planned: Iterable[PlannedFile]) -> None:
    """Writes files, each in one step. Raises UnsafePathError where one leads out of the project, OSError."""
    for each in planned:
        path = below(project.root, project.root / each.path)
        atomic_file.make_folder(path.parent)
        atomic_file.write(path, each.after, mode=0o755 if each.file.executable else None)
