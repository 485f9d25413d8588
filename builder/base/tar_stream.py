"""Tar files too large for memory: written in order, read by offset, and never unpacked."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePosixPath
from typing import IO, Any

from builder.base.files import LONGEST_NAME
from builder.base.values import dataclass

BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
_CHUNK = 1 << 20
_LARGEST_HEADER = 1 << 16
_MOST = 200_000
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


@dataclass(frozen=True)
class Member:
    """A file in a tar: the offset of its content and its size, in bytes."""

    offset: int
    size: int
    executable: bool = False


def head(name: str, size: int, *, executable: bool = False, mtime: int = 0) -> bytes:
    """The header before a file's content; the same file always has the same one."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime = size, mtime
    info.mode = 0o755 if executable else 0o644
    # This format allows more than 8 GiB and any name, and every reader knows it.
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    """The padding after a content of ``size`` bytes."""
    return bytes(-size % BLOCK)


def streamed(files: Sequence[tuple[bytes, int, Iterable[bytes]]]) -> tuple[int, Iterator[bytes]]:
    """The size in bytes and the content of a tar of files, each given by its header, its size and its pieces."""

    def content() -> Iterator[bytes]:
        for header, size, pieces in files:
            yield header
            yield from pieces
            yield padding(size)
        yield END

    return sum(len(header) + size + -size % BLOCK for header, size, _ in files) + len(END), content()


class Writer:
    """Writes a tar into an empty file, which is complete only after `finish`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, name: str, content: bytes, *, executable: bool = False) -> None:
        """Adds a file. Raises OSError if the disk fails."""
        self.stream(name, len(content), [content], executable=executable)

    def stream(self, name: str, size: int, pieces: Iterable[bytes], *, executable: bool = False) -> str:
        """Adds a file of ``size`` bytes and returns its ``sha256:…``. Raises ValueError if ``pieces`` have another
        length, and OSError if the disk fails; the tar is useless then."""
        self._put(head(name, size, executable=executable))
        digest, left = sha256(), size
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                break
            digest.update(piece)
            self._put(piece)
        if left:
            raise ValueError(f"{name} does not have the announced size")
        self._put(padding(size))
        return f"sha256:{digest.hexdigest()}"

    def finish(self) -> int:
        """Completes the tar and returns its size in bytes."""
        self._put(END)
        return self._file.tell()

    def _put(self, content: bytes) -> None:
        # An unbuffered file may write only a part.
        view = memoryview(content)
        while view:
            view = view[self._file.write(view) :]


def members(file: IO[bytes]) -> dict[str, Member]:
    """The files of a tar by name, in order, without folders.

    Raises ValueError, with the reason, if the file is not a tar or is truncated. The tar may contain only files and
    folders, each name once, and no name that leads out of the folder where it is unpacked.
    """
    files: dict[str, Member] = {}
    length = os.fstat(file.fileno()).st_size
    try:
        headers: Any = _Headers(file)
        with tarfile.open(fileobj=headers, mode="r:") as archive:
            for info in archive:
                name = info.name.removesuffix("/")
                if fault := _fault(info, name, files, length):
                    raise ValueError(fault)
                if not info.isdir():
                    files[name] = Member(info.offset_data, info.size, bool(info.mode & 0o111))
    except (tarfile.TarError, EOFError, OverflowError):
        damaged = "its content ends too early or is not a valid tar"
        raise ValueError(damaged if files else "it is not a tar file, or is cut off") from None
    for name in files:
        if above := next((str(folder) for folder in PurePosixPath(name).parents if str(folder) in files), None):
            raise ValueError(f"`{printable(above)}` is both a file and a folder in it")
    return files


class _Headers:
    """The headers of a tar. A header in a sparse file may announce names or attributes of any size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > _LARGEST_HEADER:
            raise ValueError(f"its header of {size:,} bytes is too large")
        return self._file.read(size)


def _fault(info: tarfile.TarInfo, name: str, files: Mapping[str, Member], length: int) -> str:
    """The reason to refuse a tar of ``length`` bytes with this entry after ``files``; empty if there is none."""
    if is_unsafe(name):
        return f"it contains `{printable(name)}`, which leads out of its folder or is not a normalized path"
    if info.isdir():
        return ""
    if info.type not in _PLAIN:
        return f"`{printable(name)}` in it is neither a file nor a folder"
    if name in files:
        return f"it contains `{printable(name)}` twice"
    if info.offset_data + info.size > length:
        return "it is cut off"
    return f"it contains more than {_MOST:,} files" if len(files) == _MOST else ""


def is_unsafe(name: str) -> bool:
    """True if a relative path leads out of its folder, or is not normalised."""
    parts = name.split("/")
    return (
        not name
        or "\\" in name
        or "\0" in name
        or any(part in ("", ".", "..") or len(os.fsencode(part)) > LONGEST_NAME for part in parts)
    )


def printable(text: str) -> str:
    """Text from an untrusted file, with its control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text[:200])


def pieces(file: IO[bytes], member: Member) -> Iterator[bytes]:
    """The content of a member, in pieces. Raises ValueError if the file is truncated."""
    offset, left = member.offset, member.size
    while left:
        piece = os.pread(file.fileno(), min(left, _CHUNK), offset)
        if not piece:
            raise ValueError("it is cut off")
        yield piece
        offset, left = offset + len(piece), left - len(piece)
