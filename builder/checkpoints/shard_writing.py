"""Writing one file of weights: bytes that do not change are copied, the others are computed, and the digest is taken of
all of them on their way."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import ExitStack, suppress
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

# Small enough to be in the processor's cache still when it is written: the bytes come from memory once, for the digest
# and for the copy. `copy_file_range` would leave them to be read again for the digest.
_BLOCK = 1 << 20
# The disk is given work from the beginning, and not when the file is complete: it writes while the rest is digested.
_STRETCH = 8 << 20


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
        target.unlink(missing_ok=True)
        with naming(target), target.open("xb", buffering=0) as out:
            out.truncate(shard.size)
            writer = _Writer(out, count_bytes)
            writer.put(shard.beginning)
            for piece in shard.pieces:
                if isinstance(piece, ByteCopy):
                    writer.copy(files[piece.file], piece)
                else:
                    _convert(writer, files[piece.tensor.file], piece)
            writer.finish()
        _require_unchanged(files, paths, states)
    header = hashlib.sha256(shard.beginning[8:]).hexdigest()
    return RecordedFile(shard.size, f"sha256:{writer.digest.hexdigest()}", f"sha256:{header}")


class _Writer:
    """A file that is written from its beginning to its end, with the digest of what it has so far."""

    def __init__(self, out: IO[bytes], count_bytes: CountBytes) -> None:
        self.digest = hashlib.sha256()
        self._out = out
        self._at = 0
        self._counted = 0
        self._count_bytes = count_bytes
        self._buffer = memoryview(bytearray(_BLOCK))

    def put(self, content: bytes | memoryview) -> None:
        """Writes ``content``."""
        self.digest.update(content)
        rest = memoryview(content)
        while rest:
            written = os.pwrite(self._out.fileno(), rest, self._at)
            rest = rest[written:]
            self._advance(written)

    def copy(self, source: IO[bytes], piece: ByteCopy) -> None:
        """Copies bytes as they are. A hole in the source is one in the result."""
        at, end = piece.begin, piece.begin + piece.size
        while at < end:
            part = self._buffer[: min(_BLOCK, end - at)]
            if _is_hole(source, at, len(part)):
                self._skip(len(part))
            else:
                _read_into(source, at, part)
                self.put(part)
            at += len(part)

    def finish(self) -> None:
        """Returns when everything is on the disk."""
        os.fsync(self._out.fileno())
        self._count()

    def _skip(self, size: int) -> None:
        self.digest.update(bytes(size))
        self._advance(size)

    def _advance(self, size: int) -> None:
        self._at += size
        if self._at - self._counted >= _STRETCH:
            self._count()

    def _count(self) -> None:
        begin, size = self._counted, self._at - self._counted
        with suppress(OSError):
            # Linux begins to write what it is told to forget, and does not wait for the end of that.
            os.posix_fadvise(self._out.fileno(), begin, size, os.POSIX_FADV_DONTNEED)
        self._counted = self._at
        self._count_bytes(size)


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


def _is_hole(source: IO[bytes], begin: int, size: int) -> bool:
    """True where a file that goes on for ``size`` bytes has no data in them; false also where nobody knows."""
    try:
        return os.lseek(source.fileno(), begin, os.SEEK_DATA) >= begin + size
    except OSError as error:
        return error.errno == errno.ENXIO and begin + size <= os.fstat(source.fileno()).st_size


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
