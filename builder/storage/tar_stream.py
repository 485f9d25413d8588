"""Tar files too large for memory: written with several members at a time, read by their places, and never unpacked."""

from __future__ import annotations

import os
import tarfile
import threading
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
_CHUNK = 1 << 20
_LONGEST = 255  # bytes in a name, on every file system
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


@dataclass(frozen=True)
class Member:
    """A file in a tar: where its content begins, in bytes, and how long it is."""

    offset: int
    size: int
    executable: bool = False


def head(name: str, size: int, *, executable: bool = False) -> bytes:
    """What stands before a file's content: always the same for the same file."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o755 if executable else 0o644
    # This form holds more than 8 GiB and any name, and every reader knows it.
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    """What stands after a content of ``size`` bytes."""
    return bytes(-size % BLOCK)


class Writer:
    """Writes a tar into an empty file. A member has its place as soon as its size is known, so that several threads may
    write theirs at once. Nothing but `finish` makes a whole tar of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._descriptor = file.fileno()
        self._end = 0
        self._lock = threading.Lock()

    def add(self, name: str, content: bytes, *, executable: bool = False) -> None:
        """Adds a file. Raises OSError as the disk does."""
        self.stream(name, len(content), [content], executable=executable)

    def stream(self, name: str, size: int, pieces: Iterable[bytes], *, executable: bool = False) -> str:
        """Adds a file of ``size`` bytes and returns their ``sha256:…``. Raises ValueError where ``pieces`` are not as
        long, OSError as the disk does; the tar is of no use then."""
        begin = head(name, size, executable=executable)
        with self._lock:
            place = self._end
            self._end += len(begin) + size + len(padding(size))
        place = self._put(place, begin)
        digest, left = sha256(), size
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                break
            digest.update(piece)
            place = self._put(place, piece)
        if left:
            raise ValueError(f"{name} is not of the size that was said")
        self._put(place, padding(size))
        return f"sha256:{digest.hexdigest()}"

    def finish(self) -> int:
        """Ends the tar; returns its size in bytes."""
        return self._put(self._end, END)

    def _put(self, place: int, content: bytes) -> int:
        view = memoryview(content)
        while view:
            written = os.pwrite(self._descriptor, view, place)
            view, place = view[written:], place + written
        return place


def members(file: IO[bytes]) -> dict[str, Member]:
    """The files of a tar by name, in their order. Folders are passed over.

    Raises ValueError, with the reason, for what is no tar or is cut off, and for one that holds anything but files and
    folders, a name twice, or a name that leads out of the folder in which it would be unpacked.
    """
    found: dict[str, Member] = {}
    length = os.fstat(file.fileno()).st_size
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for info in archive:
                name = info.name.removesuffix("/")
                if is_unsafe(name):
                    raise ValueError(f"it holds `{printable(name)}`, which leads out of its folder or is no plain path")
                if info.isdir():
                    continue
                if info.type not in _PLAIN:
                    raise ValueError(f"`{printable(name)}` in it is neither a file nor a folder")
                if name in found:
                    raise ValueError(f"it holds `{printable(name)}` twice")
                if info.offset_data + info.size > length:
                    raise ValueError("it is cut off")
                found[name] = Member(info.offset_data, info.size, bool(info.mode & 0o111))
    except (tarfile.TarError, EOFError, OverflowError):
        raise ValueError("it is no tar file, or is cut off" if not found else "it is cut off or damaged") from None
    for name in found:
        if above := next((str(folder) for folder in PurePosixPath(name).parents if str(folder) in found), None):
            raise ValueError(f"`{printable(above)}` in it is a file and a folder")
    return found


def is_unsafe(name: str) -> bool:
    """Whether a path leads elsewhere than below the folder that it is relative to, or is not written plainly."""
    parts = name.split("/")
    return (
        not name
        or "\\" in name
        or "\0" in name
        or any(part in ("", ".", "..") or len(os.fsencode(part)) > _LONGEST for part in parts)
    )


def printable(text: str) -> str:
    """``text`` as it may be shown: who made the file chose its bytes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text[:200])


def pieces(file: IO[bytes], member: Member) -> Iterator[bytes]:
    """The content of a member. Raises ValueError where the file ends before it does."""
    place, left = member.offset, member.size
    while left:
        piece = os.pread(file.fileno(), min(left, _CHUNK), place)
        if not piece:
            raise ValueError("it is cut off")
        yield piece
        place, left = place + len(piece), left - len(piece)
