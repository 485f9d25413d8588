"""A journal is the record from which a killed command continues: one process holds it, and it is on the disk, whole,
before each step. Anyone may have written the file, so the types of a record check the names in it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from builder.base import files, records
from builder.base.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T")


@dataclass(frozen=True)
class Journal(Generic[T]):
    """The journal at ``path``, of records of one ``kind`` and ``format``. Errors call it that of ``what``, and say
    what to do ``while_held`` by another process and ``if_unreadable``."""

    path: Path
    kind: type[T]
    format: int
    what: str
    while_held: str
    if_unreadable: str

    @property
    def lock(self) -> Path:
        return self.path.with_suffix(".lock")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Holds the journal. Raises ConflictError where another process does."""
        files.make_folder(self.path.parent)
        try:
            with files.locked(self.lock, wait_seconds=0):
                yield
        except files.LockHeldError as error:
            holder = f", process {error.holder}" if error.holder else ""
            raise ConflictError(f"{self.what} is already running{holder}", hint=self.while_held) from None

    @property
    def is_held(self) -> bool:
        return self.lock.exists() and files.is_held(self.lock)

    def write(self, record: T) -> None:
        """Writes the record, on the disk before this returns."""
        files.write_atomically(self.path, records.text_of(record, {"format": self.format}).encode())

    def read(self) -> T | None:
        """The record, or None if there is no file. Raises ConflictError if the file holds anything else."""
        try:
            return records.read_file(self.path, self.kind, {"format": self.format})
        except FileNotFoundError:
            return None
        except (OSError, records.RecordError) as error:
            shown = "/".join(self.path.parts[-3:])
            message = f"{shown} is not a journal of {self.what} that this version of builder can read: {error}"
            raise ConflictError(message, hint=self.if_unreadable) from None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
