"""Reading images.lock. A file with anything wrong in it is refused as a whole, and each problem named with its place.

Nothing is guessed: the lock decides which image runs.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import Location, LockError, Problem
from builder.lock import parsing
from builder.lock.file_problems import TAKE_BACK, conflict_marks, lock_error
from builder.lock.model import Lock
from builder.storage import regular_file

if TYPE_CHECKING:
    from builder.project import Project

_LARGEST = 256 << 20  # bytes; a link to a device has no end


def of(project: Project) -> Lock:
    """Reads the lock of a project; an empty one where nothing was built yet. Raises LockError as ``read`` does, and
    where the file is lost."""
    content = read_bytes(project.lock)
    if content is not None:
        return parse_bytes(content, project.lock.name)
    from builder.lock import lost_lock  # only now: a lock that exists is read without json

    lost_lock.refuse(project)
    return Lock()


def read(path: Path) -> Lock:
    """Reads the lock in ``path``; an empty one where there is no such file. Raises LockError as ``parse`` does, and for
    a file that cannot be opened."""
    content = read_bytes(path)
    return Lock() if content is None else parse_bytes(content, path.name)


def read_bytes(path: Path) -> bytes | None:
    """Reads the bytes of ``path``; None where there is no such file. Raises LockError where it cannot be opened."""
    try:
        return regular_file.read(Path(os.path.realpath(path)), _LARGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        refused = error.errno in (errno.EACCES, errno.EPERM)
        hint = "give it to the user who runs this" if refused else TAKE_BACK
        raise LockError(f"{path} cannot be read: {error.strerror}", hint=hint) from None


def parse_bytes(content: bytes, file: str) -> Lock:
    """Does the same as ``parse`` for the bytes of a file. Raises LockError also where they are not UTF-8."""
    try:
        return parse(content.decode(), file)
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        place = Location(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise lock_error([Problem(place, "not UTF-8 text")], TAKE_BACK) from None


def parse(content: str, file: str = "images.lock") -> Lock:
    """Returns the lock that a text holds; errors call it ``file``. Raises LockError, with every problem, for a conflict
    marker, a file cut off, invalid YAML, a newer version, an unknown key, a wrong value, and a key or number that
    stands twice."""
    if conflict_marks(content):
        from builder.lock import merge_sides

        raise merge_sides.conflict_error(content, file)
    return parsing.parse(content, file)
