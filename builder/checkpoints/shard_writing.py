"""Writing one file of weights: bytes that do not change are copied by the kernel, the others are computed, and the
digest is taken of what was written."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from builder.checkpoints import conversion, source_files
from builder.checkpoints.planning.layout import ByteCopy
from builder.checkpoints.record import RecordedFile
from builder.errors import SourceError
from builder.storage.named_errors import naming

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from builder.checkpoints.planning.layout import Conversion, PlannedShard
    from builder.checkpoints.planning.tensor_table import SourceFile
    from builder.checkpoints.source_files import FileState

    CountBytes = Callable[[int], None]
    """Is called with the bytes written since the last call; what it raises ends the work."""

# What is copied at once, so that progress is told, and is still in the kernel's memory when its digest is taken.
_CHUNK = 32 << 20
_BUFFER = 4 << 20
# Between two disks, or on file systems that do not do it, the bytes go through this process.
_CANNOT_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


def write(
    shard: PlannedShard,
    target: Path,
    paths: Mapping[SourceFile, Path],
    states: Mapping[SourceFile, FileState],
    count_bytes: CountBytes,
) -> RecordedFile:
    """Writes a file of weights from the files at ``paths``, and returns its size and digests when it is on the disk.

    Raises SourceError where a file is no longer in the state that ``states`` has, before or after it was read, and
    OSError, with the name of the file.
    """
    with ExitStack() as stack:
        files = {file: stack.enter_context(source_files.open_file(paths[file])) for file in sorted(shard.sources)}
        _require_unchanged(files, paths, states)
        with naming(target), target.open("w+b", buffering=0) as out:
            out.truncate(shard.size)
            writer = _Writer(out, count_bytes)
            writer.put(shard.beginning)
            for piece in shard.pieces:
                if isinstance(piece, ByteCopy):
                    writer.copy(files[piece.file], paths[piece.file], piece)
                else:
                    _convert(writer, files[piece.tensor.file], piece)
            os.fsync(out.fileno())
        _require_unchanged(files, paths, states)
    header = hashlib.sha256(shard.beginning[8:]).hexdigest()
    return RecordedFile(shard.size, f"sha256:{writer.digest.hexdigest()}", f"sha256:{header}")


class _Writer:
    """A file that is written from its beginning to its end, with the digest of what it has so far."""

    def __init__(self, out: IO[bytes], count_bytes: CountBytes) -> None:
        self.digest = hashlib.sha256()
        self._out = out
        self._at = 0
        self._count_bytes = count_bytes
        self._buffer = memoryview(bytearray(_BUFFER))

    def put(self, content: bytes) -> None:
        """Writes ``content``."""
        self.digest.update(content)
        rest = memoryview(content)
        while rest:
            written = os.pwrite(self._out.fileno(), rest, self._at)
            self._at += written
            rest = rest[written:]
        self._count_bytes(len(content))

    def copy(self, source: IO[bytes], path: Path, piece: ByteCopy) -> None:
        """Copies bytes as they are. A hole in the source is one in the result."""
        done = 0
        while done < piece.size:
            begin, count = piece.begin + done, min(_CHUNK, piece.size - done)
            hole = _hole(source, begin, count)
            if not hole:
                count = _copy(source, path, begin, count, self._out, self._at)
            self._add_digest(hole or count, is_hole=bool(hole))
            self._at += hole or count
            done += hole or count
            self._count_bytes(hole or count)

    def _add_digest(self, size: int, *, is_hole: bool) -> None:
        if is_hole:
            self._buffer[: min(size, _BUFFER)] = bytes(min(size, _BUFFER))
        for done in range(0, size, _BUFFER):
            part = self._buffer[: min(_BUFFER, size - done)]
            if not is_hole:
                _read_into(self._out, self._at + done, part)
            self.digest.update(part)


def _convert(writer: _Writer, source: IO[bytes], piece: Conversion) -> None:
    tensor = piece.tensor

    def read(begin: int, size: int) -> bytes:
        content = bytearray(size)
        _read_into(source, tensor.begin + begin, memoryview(content))
        return bytes(content)

    try:
        for content in conversion.converted(tensor, read):
            writer.put(content)
    except conversion.ConversionError as error:
        raise SourceError(str(error), hint="`except` leaves a tensor as it is") from None


def _hole(source: IO[bytes], begin: int, most: int) -> int:
    """The length of the hole at ``begin``, at most ``most``; 0 where there is data, or nobody knows."""
    try:
        data = os.lseek(source.fileno(), begin, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO and begin < os.fstat(source.fileno()).st_size:
            return min(most, os.fstat(source.fileno()).st_size - begin)
        return 0
    return min(most, data - begin)


def _copy(source: IO[bytes], path: Path, begin: int, count: int, out: IO[bytes], at: int) -> int:
    """Copies up to ``count`` bytes, and returns how many."""
    try:
        copied = os.copy_file_range(source.fileno(), out.fileno(), count, begin, at)
    except OSError as error:
        if error.errno not in _CANNOT_COPY:
            raise
        content = os.pread(source.fileno(), min(count, _BUFFER), begin)
        copied = os.pwrite(out.fileno(), content, at) if content else 0
    if not copied:
        raise SourceError(f"{path} ends before byte {begin + count:,}: it was cut off while it was read")
    return copied


def _read_into(file: IO[bytes], begin: int, part: memoryview) -> None:
    done = 0
    while done < len(part):
        count = os.preadv(file.fileno(), [part[done:]], begin + done)
        if not count:
            raise SourceError(f"{file.name} ends before byte {begin + len(part):,}: it was cut off while it was read")
        done += count


def _require_unchanged(
    files: Mapping[SourceFile, IO[bytes]], paths: Mapping[SourceFile, Path], states: Mapping[SourceFile, FileState]
) -> None:
    for file, opened in files.items():
        with source_files.open_file(paths[file]) as now:
            if source_files.state_of(opened) == states[file] == source_files.state_of(now):
                continue
        raise SourceError(
            f"{paths[file]} was changed while it was read",
            hint="wait until it is whole, and run this again: what was finished from other files stays",
        )
