"""Compile caches travel with their number: in an archive, or to a node.

What leaves are files that are as the record of complete files has them. On the other machine a container of the image
receives them, since servers write there as root. They count once each has its digest, and only on the same chip."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import tar_stream, words
from builder.base.errors import TransferError
from builder.definitions.container import COMPILE_CACHES, compile_cache
from builder.engine import containers
from builder.serving import compile_caches
from builder.serving.compile_caches import INSIDE, RECORD, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from builder.lock.model import ImageName, NumberedImage


_WAIT = 600.0  # seconds
_ARRIVING, _SUMS = "arriving", "sums"
_NANO = 10**9
_LOOK = f"cat /proc/driver/nvidia/gpus/*/information /proc/cpuinfo 2>/dev/null; ! test -e {INSIDE}/{RECORD}"
# What the other machine compiled itself stays. The record comes last: without it the files are not known as complete.
_TAKE = f"""\
set -e
cd {INSIDE}/{_ARRIVING}
sha256sum --check --status --strict {_SUMS}
for each in */; do cp -aln -- "$each" ..; done
cp -a -- {RECORD} ..
"""
_CLEAN = ("rm", "-rf", "--", f"{INSIDE}/{_ARRIVING}")


@dataclass(frozen=True)
class TravelingCaches:
    """The ``key`` and the ``chips`` that the files were compiled for, and the record of each file by its path."""

    key: str
    chips: tuple[str, ...]
    files: Mapping[str, Entry]

    @property
    def text(self) -> str:
        size = sum(size for size, _, _ in self.files.values())
        return f"compile caches: {words.counted(len(self.files), 'file')}, {words.size_text(size)}"


def find_traveling_caches(
    project: Project, environ: Mapping[str, str], name: ImageName, image: NumberedImage
) -> tuple[TravelingCaches, Path] | None:
    """The intact files that a start of ``name`` on this machine would use, and their folder; None without any."""
    owner = compile_caches.shared_with(project, environ, name)
    folder = Path(compile_cache(environ, owner.repository, owner.number))
    intact = {
        path: entry
        for path, entry in compile_caches.complete_files(folder).items()
        if is_welcome(path) and compile_caches.file_entry(folder / path) == entry
    }
    key = compile_caches.cache_key(project, name, image)
    return (TravelingCaches(key, compile_caches.chips_of(), intact), folder) if intact else None


def is_welcome(path: str) -> bool:
    """True for the path of a file in one of the folders that servers compile into."""
    top, _, below = path.partition("/")
    return top in COMPILE_CACHES and bool(below) and path.isprintable() and not tar_stream.is_unsafe(path)


def read_pieces(folder: Path, path: str) -> Iterator[bytes]:
    """The content of a file. Raises TransferError where it cannot be read."""
    try:
        with (folder / path).open("rb") as file:
            while piece := file.read(1 << 20):
                yield piece
    except OSError as error:
        raise TransferError(f"{folder / path} cannot be read: {error.strerror}") from None


def place(
    endpoint: Endpoint, image: str, folder: str, caches: TravelingCaches, pieces: Callable[[str], Iterable[bytes]]
) -> str:
    """Puts the files into ``folder`` of the engine's machine, through a container of ``image``. Returns why they were
    not taken, empty where they were. Raises BuilderError where the engine or the source fails."""
    with containers.running(endpoint, image, labels={"builder.caches": "1"}, mounts={folder: INSIDE}) as container:
        seen = container.run(["sh", "-c", _LOOK], timeout=_WAIT)
        if seen.exit_code:
            return "there are some already"
        chips = compile_caches.parse_chips(seen.output)
        if chips != caches.chips:
            return f"they were compiled for {', '.join(caches.chips)}, and there is {', '.join(chips)}"
        try:
            container.run(_CLEAN, timeout=_WAIT)
            containers.put_archive(container, INSIDE, *_tar(caches, pieces))
            return "" if not container.run(["sh", "-c", _TAKE], timeout=_WAIT).exit_code else "they arrived damaged"
        finally:
            container.run(_CLEAN, timeout=_WAIT)


def _tar(caches: TravelingCaches, pieces: Callable[[str], Iterable[bytes]]) -> tuple[int, Iterator[bytes]]:
    """The size and the content of a tar with the files, their sums and their record. Times are whole seconds, which is
    all that a tar keeps; ninja compares them."""
    entries = {path: (size, digest, at // _NANO * _NANO) for path, (size, digest, at) in caches.files.items()}
    sums = "".join(f"{digest}  {path}\n" for path, (_, digest, _) in entries.items())

    def verified(path: str) -> Iterator[bytes]:
        digest = sha256()
        for piece in pieces(path):
            digest.update(piece)
            yield piece
        if digest.hexdigest() != entries[path][1]:
            raise TransferError(f"{path} of the compile caches is not as it was recorded", hint="try again")

    contents: list[tuple[str, int, int, Iterable[bytes]]] = [
        (path, size, at // _NANO, verified(path)) for path, (size, _, at) in entries.items()
    ]
    for name, content in {_SUMS: sums.encode(), RECORD: compile_caches.record_text(entries)}.items():
        contents.append((name, len(content), 0, [content]))
    return tar_stream.streamed(
        [
            (tar_stream.head(f"{_ARRIVING}/{name}", size, executable=True, mtime=mtime), size, parts)
            for name, size, mtime, parts in contents
        ]
    )
