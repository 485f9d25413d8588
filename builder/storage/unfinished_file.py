"""A file that is written under a name of its own until it is whole, and that is gone where it never is.

Who is killed meanwhile leaves it, and cannot come back for it: whoever next writes the same file removes it. A lock
tells it from one that is being written, by whatever process on whatever machine.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING

from builder.storage import file_lock, regular_file
from builder.storage.named_errors import naming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def beside(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A new file in the folder of ``path`` and its name, for the block to rename; gone when the block ends, but for
    where it got another name. Several processes may write the same ``path`` at a time. Raises OSError."""
    remove_stale(path)
    temporary = path.with_name(f"{_prefix(path)}{os.getpid()}.{threading.get_ident()}")
    with _until_named(temporary, _make_and_lock) as file:
        yield file, temporary


@contextlib.contextmanager
def of_one_writer(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """The same for a caller who holds a lock, so that nobody else writes ``path``. A killed one leaves ``.NAME.new``,
    which the next one replaces. Raises OSError."""
    temporary = path.with_name(f".{path.name}.new")
    with _until_named(temporary, _make) as file:
        yield file, temporary


def is_abandoned(path: Path) -> bool:
    """True for a file that a killed writer left, whatever it was to become."""
    first, *parts = path.name.split(".")
    is_one = not first and len(parts) > 1 and all(part.isdecimal() for part in parts[-2:])
    return is_one and not file_lock.is_held(path)


def remove_stale(path: Path) -> None:
    """Removes what killed writers of ``path`` left; for who does not write it."""
    prefix = _prefix(path)
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            process, dot, thread = entry.name.removeprefix(prefix).partition(".")
            if entry.name.startswith(prefix) and dot and process.isdecimal() and thread.isdecimal():
                file_lock.remove_unlocked(Path(entry.path))


def _prefix(path: Path) -> str:
    return f".{path.name}."


@contextlib.contextmanager
def _until_named(temporary: Path, make: Callable[[Path], int]) -> Iterator[IO[bytes]]:
    """The file that ``make`` opens; it is gone when the block ends, but for where it got another name."""
    try:
        with naming(temporary), os.fdopen(make(temporary), "wb") as file:
            yield file
    finally:
        # In its place it is no longer here; anywhere before that it is litter.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _make(path: Path) -> int:
    # Deleted rather than opened: what a killed writer left may belong to another user, or be a link.
    path.unlink(missing_ok=True)
    return regular_file.opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def _make_and_lock(path: Path) -> int:
    while True:
        descriptor = _make(path)
        if file_lock.lock_new(path, descriptor):
            return descriptor
        os.close(descriptor)
