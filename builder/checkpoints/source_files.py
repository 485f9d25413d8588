"""The files of a checkpoint's source: a model of the Hub at one commit, in the cache or not yet, or a folder."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from builder.checkpoints import named_folder
from builder.errors import SourceError
from builder.sources.huggingface import file_ranges, hub_models
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.checkpoint import CheckpointSource
    from builder.project import Project
    from builder.sources.huggingface.hub_models import Snapshot

_DIGEST_KINDS = {64: "sha256", 40: "git"}
_HEX = re.compile("[0-9a-f]+")


@dataclass(frozen=True)
class FileState:
    """The state of a file: all that changes when it is written."""

    device: int
    inode: int
    size: int
    changed: int


@dataclass(frozen=True)
class SourceContents:
    """A source that was looked up: its name in the definition, ``requested`` as the definition has it, and by path the
    size of each file. ``folder`` has those that are here; ``snapshot`` is the model, of a source on the Hub."""

    name: str
    requested: str
    sizes: Mapping[str, int]
    folder: Path
    snapshot: Snapshot | None
    environ: Mapping[str, str]

    def is_here(self, path: str) -> bool:
        """True for a file that need not be fetched."""
        return self.snapshot is None or (self.folder / path).exists()

    def shown(self, path: str) -> str:
        """The name of a file for messages."""
        return f"{self.snapshot.model}: {path}" if self.snapshot else str(self.folder / path)

    def digest(self, path: str) -> str | None:
        """The digest of a file's content as the Hub lists it; None where nothing does."""
        if self.snapshot is None:
            return None
        listed = next((file.blob for file in self.snapshot.files if file.path == path), None)
        if listed is None and (self.folder / path).is_symlink():
            listed = (self.folder / path).readlink().name
        kind = _DIGEST_KINDS.get(len(listed or ""))
        return f"{kind}:{listed}" if kind and listed and _HEX.fullmatch(listed) else None

    def identity(self, path: str) -> str:
        """All that decides the content of a file, as far as it is known without reading it."""
        if self.snapshot:
            return f"{self.snapshot.model}@{self.snapshot.commit}:{path}"
        with open_file(self.folder / path) as file:
            state = state_of(file)
        return f"{self.folder / path}:{state.size}:{state.changed}"

    def read(self, path: str, begin: int, size: int) -> bytes:
        """Reads a range of a file, fewer bytes where it ends before: here, or from the Hub. Raises SourceError."""
        if self.snapshot and not self.is_here(path):
            return file_ranges.read(self.environ, self.snapshot, path, begin, size)
        try:
            with open_file(self.folder / path) as file:
                file.seek(begin)
                return file.read(size)
        except OSError as error:
            raise SourceError(f"{self.folder / path}: {error.strerror or error}") from None


def look_up(
    project: Project, environ: Mapping[str, str], name: str, source: CheckpointSource, commit: str | None
) -> SourceContents:
    """Looks up a source: of the Hub at ``commit`` where that is given, else at the revision that is wanted. Raises
    SourceError where it cannot be read."""
    if source.model:
        snapshot = hub_models.find_snapshot(environ, source.model, commit or source.revision)
        folder = huggingface_cache.folder(environ, source.model) / "snapshots" / snapshot.commit
        sizes = {file.path: file.size for file in snapshot.files} or _sizes(folder)
        return SourceContents(name, str(source), sizes, folder, snapshot, environ)
    folder = named_folder.expanded(project, environ, source.folder or "")
    return SourceContents(name, str(source), _sizes(folder), folder, None, environ)


def open_file(path: Path) -> IO[bytes]:
    """Opens a plain file to read, links followed. Raises OSError for anything else; it never waits, as opening a pipe
    would."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(f"{path} is no plain file")
    return file


def state_of(file: IO[bytes]) -> FileState:
    """The state of an open file."""
    status = os.fstat(file.fileno())
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _sizes(folder: Path) -> dict[str, int]:
    """The sizes of the files of a folder. Links lead to files of the folder, or of a snapshot in the cache to those of
    its model. Raises SourceError for any other link: whoever made the folder chose a file of this machine by it."""
    real = folder.resolve()
    root = real.parent.parent if real.parent.name == "snapshots" else real
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_file()]
        for entry in entries:
            if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(root):
                hint = "put the file itself there, or name its own folder in checkpoint.yaml"
                raise SourceError(f"{entry.path}: a link that leads out of its folder", hint=hint)
        return {entry.name: entry.stat().st_size for entry in entries}
    except OSError as error:
        hint = "`folder` of this source in checkpoint.yaml says where it is"
        raise SourceError(f"{folder}: {error.strerror}", hint=hint) from None
