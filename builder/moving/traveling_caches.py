"""Compile caches travel with their number: in an archive, to a node, or beside the image in a registry.

Only files that match the record of complete files are sent. On the other machine a container of the image receives
them, since servers write there as root. They are used only if all digests match, and only on the same chip."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import file_digest
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from builder.base import records, tar_stream, words
from builder.base.errors import BuilderError, TransferError
from builder.base.events import Message
from builder.base.values import dataclass
from builder.definitions.container import COMPILE_CACHES, compile_cache
from builder.engine import archives, containers, images, machine, transfer
from builder.engine.registry import download_image, manifest_digest
from builder.lock import lock_file
from builder.serving import compile_caches
from builder.serving.compile_caches import INSIDE, RECORD, Entry

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from builder.lock.model import ImageName, NumberedImage
    from builder.numbers.named_registry import Registry
    from builder.numbers.workspace import Workspace


_WAIT = 600.0  # seconds
_ABOUT = "caches.json"
_OCI = "application/vnd.oci.image"
_ARRIVING, _SUMS = "arriving", "sums"
_NANO = 10**9
_LOOK = f"cat /proc/driver/nvidia/gpus/*/information /proc/cpuinfo 2>/dev/null; ! test -e {INSIDE}/{RECORD}"
# Files of an arrival that was killed are replaced. The record is copied last, since it marks the files as complete.
_TAKE = f"""\
set -e
cd {INSIDE}/{_ARRIVING}
sha256sum --check --status --strict {_SUMS}
for each in */; do cp -alf -- "$each" ..; done
cp -a -- {RECORD} ..
"""
_CLEAN = ("rm", "-rf", "--", f"{INSIDE}/{_ARRIVING}")


@dataclass(frozen=True)
class TravelingCaches:
    """The ``key`` and the ``chips`` of the compiled files, and the record of each file by path."""

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
    """The intact files that a start of ``name`` on this machine would use, and their folder; None without files."""
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
    """True for the path of a file in a folder that servers compile into."""
    top, _, below = path.partition("/")
    return top in COMPILE_CACHES and bool(below) and path.isprintable() and not tar_stream.is_unsafe(path)


def read_pieces(folder: Path, path: str) -> Iterator[bytes]:
    """The content of a file. Raises TransferError if it cannot be read."""
    try:
        with (folder / path).open("rb") as file:
            while piece := file.read(1 << 20):
                yield piece
    except OSError as error:
        raise TransferError(f"{folder / path} cannot be read: {error.strerror}") from None


def take(
    workspace: Workspace, name: ImageName, caches: TravelingCaches, pieces: Callable[[str], Iterable[bytes]]
) -> None:
    """Stores caches for the local number ``name``. Reports success, or the reason for a refusal."""
    environ, recorded = workspace.environment, lock_file.read_project_lock(workspace.project).image(name)
    if recorded is None:
        return
    folder = compile_cache(environ, name.repository, name.number)
    alike = caches.key == compile_caches.cache_key(workspace.project, name, recorded)
    try:
        if compile_caches.warm_from(workspace.project, environ, name):
            why = "other compile caches already exist there"
        elif not alike and caches.chips == compile_caches.chips_of():
            why = "they were compiled from other sources, packages or mods"
        else:
            if machine.is_here(workspace.engine.host):
                Path(folder).mkdir(parents=True, exist_ok=True)  # owned by the user; the engine would make it as root
            why = place(workspace.engine, str(name), folder, caches, pieces)
    except (BuilderError, OSError, ValueError) as error:
        why = str(error)
    workspace.report(Message(f"{caches.text}, {f'not taken: {why}' if why else 'taken'}"))


# In a registry, the caches of an image are another image with one layer. Its tag contains the digest of the first
# image. The layer is a tar with the record of the files, followed by the files.


_MOST_UNPACKED = 200  # times the size of a packed layer


def _reference(registry: Registry, name: ImageName, digest: str) -> str:
    return f"{registry.repository(name)}:{digest.replace(':', '-')}.caches"


def push_caches(workspace: Workspace, registry: Registry, name: ImageName, image: NumberedImage, digest: str) -> None:
    """Pushes the caches that the next start of ``name`` here would use, for its image with this ``digest``, unless the
    registry already has caches. Reports success, or the reason for a failure."""
    engine, reference = workspace.engine, _reference(registry, name, digest)
    try:
        if manifest_digest(engine, reference):
            return
        traveling = find_traveling_caches(workspace.project, workspace.environment, name, image)
        if traveling is None:
            return
        caches, folder = traveling
        with tempfile.TemporaryFile() as layer:
            writer = tar_stream.Writer(layer)
            writer.add(_ABOUT, json.dumps(records.plain(caches)).encode())
            for path, (size, expected, _) in caches.files.items():
                sha = writer.stream(path, size, read_pieces(folder, path))
                _require(sha == f"sha256:{expected}", f"{folder / path} changed while it was being read")
            size = writer.finish()
            layer.seek(0)
            content = f"sha256:{file_digest(layer, 'sha256').hexdigest()}"
            archives.load_archive(engine, *_image_archive(layer, size, content, image.platform, reference))
        try:
            transfer.push_image(engine, reference, registry.login(name), workspace.report)
        finally:
            images.remove_image(engine, reference)
        workspace.report(Message(f"{caches.text}, pushed"))
    except (BuilderError, OSError, ValueError) as error:
        workspace.report(Message(f"the compile caches of {name} were not pushed: {error}"))


def _image_archive(layer: IO[bytes], size: int, digest: str, platform: str, tag: str) -> tuple[int, Iterator[bytes]]:
    """The size and the content of an archive of an image with only this layer."""
    system, architecture = platform.split("/")[:2]
    rootfs = {"type": "layers", "diff_ids": [digest]}
    config = json.dumps({"os": system, "architecture": architecture, "rootfs": rootfs}).encode()
    image = archives.Manifest(
        archives.Descriptor(f"{_OCI}.config.v1+json", words.sha256_of(config), len(config)),
        (archives.Descriptor(f"{_OCI}.layer.v1.tar", digest, size),),
    )
    kind, layers = f"{_OCI}.manifest.v1+json", [image.layers[0].json]
    value = {"schemaVersion": 2, "mediaType": kind, "config": image.config.json, "layers": layers}
    manifest = json.dumps(value).encode()
    top = archives.Descriptor(kind, words.sha256_of(manifest), len(manifest))
    layer.seek(0)
    small = [(image.config.digest, len(config), [config]), (top.digest, len(manifest), [manifest])]
    return archives.packed(top, image, tag, [(digest, size, iter(partial(layer.read, 1 << 20), b"")), *small])


def pull_caches(workspace: Workspace, registry: Registry, name: ImageName, image: NumberedImage) -> None:
    """Stores the registry's caches of the image here. Reports success, or the reason for a failure."""
    if not image.digest:
        return
    try:
        digest = manifest_digest(workspace.engine, _reference(registry, name, image.digest))
        if digest is None:
            return
        with tempfile.TemporaryFile() as layer, tempfile.TemporaryFile() as unpacked:
            _download_layer(workspace, registry.repository(name), digest, layer)
            content = unpacked_layer(layer, unpacked)
            members = tar_stream.members(content)
            caches = records.parse(b"".join(tar_stream.pieces(content, members[_ABOUT])), TravelingCaches)
            for path, (size, _, _) in caches.files.items():
                _require(is_welcome(path) and members[path].size == size, f"{path} is not a compile-cache file")
            take(workspace, name, caches, lambda path: tar_stream.pieces(content, members[path]))
    except (BuilderError, OSError, EOFError, ValueError, KeyError, zlib.error) as error:
        workspace.report(Message(f"the compile caches of {name} were not taken: {error}"))


def _download_layer(workspace: Workspace, repository: str, digest: str, file: IO[bytes]) -> None:
    """Writes the only layer of an image into ``file``. Raises SourceError, or TransferError if its digest differs."""
    numbers = count(1)

    def receive(blob: str, _: int, pieces: Iterator[bytes]) -> None:
        if next(numbers) == 2:  # after the configuration
            wrong = TransferError("the registry sent content with another digest")
            file.writelines(archives.verified(pieces, blob, wrong))

    download_image(workspace.engine, repository, digest, receive)
    file.seek(0)


def unpacked_layer(layer: IO[bytes], unpacked: IO[bytes]) -> IO[bytes]:
    """Returns a layer that can be read by offset: the file ``layer`` itself, or, if it is packed, ``unpacked`` with its
    content. The classic image store pushes packed layers. Raises ValueError if the content is far too large."""
    is_packed = layer.read(2) == b"\x1f\x8b"
    layer.seek(0)
    if not is_packed:
        return layer
    most = (1 << 20) + _MOST_UNPACKED * os.fstat(layer.fileno()).st_size
    with gzip.open(layer) as content:
        while piece := content.read(1 << 20):
            unpacked.write(piece)
            _require(unpacked.tell() <= most, "they unpack to far more than compile caches do")
    unpacked.seek(0)
    return unpacked


def _require(fits: bool, message: str) -> None:
    if not fits:
        raise ValueError(message)


def place(
    endpoint: Endpoint, image: str, folder: str, caches: TravelingCaches, pieces: Callable[[str], Iterable[bytes]]
) -> str:
    """Puts the files into ``folder`` of the engine's machine, through a container of ``image``. Returns the reason for
    a refusal; empty after success. Raises BuilderError if the engine or the source fails."""
    with containers.running(endpoint, image, labels={"builder.caches": "1"}, mounts={folder: INSIDE}) as container:
        seen = container.run(["sh", "-c", _LOOK], timeout=_WAIT)
        if seen.exit_code:
            return "other compile caches already exist there"
        chips = compile_caches.parse_chips(seen.output)
        if chips != caches.chips:
            return f"they were compiled for {', '.join(caches.chips)}, but the other machine has {', '.join(chips)}"
        try:
            container.run(_CLEAN, timeout=_WAIT)
            containers.put_archive(container, INSIDE, *_tar(caches, pieces))
            return "" if not container.run(["sh", "-c", _TAKE], timeout=_WAIT).exit_code else "they arrived damaged"
        finally:
            container.run(_CLEAN, timeout=_WAIT)


def _tar(caches: TravelingCaches, pieces: Callable[[str], Iterable[bytes]]) -> tuple[int, Iterator[bytes]]:
    """The size and the content of a tar with the files, their sums and their record. The record has times in whole
    seconds, since a tar stores no fractions, and ninja compares the times."""
    entries = {path: (size, digest, at // _NANO * _NANO) for path, (size, digest, at) in caches.files.items()}
    sums = "".join(f"{digest}  {path}\n" for path, (_, digest, _) in entries.items())
    contents: list[tuple[str, int, int, Iterable[bytes]]] = []
    for path, (size, digest, at) in entries.items():
        message = f"{path} of the compile caches does not match its record"
        wrong = TransferError(message, hint="run the command again")
        contents.append((path, size, at // _NANO, archives.verified(pieces(path), f"sha256:{digest}", wrong)))
    for name, content in {_SUMS: sums.encode(), RECORD: compile_caches.record_text(entries)}.items():
        contents.append((name, len(content), 0, [content]))
    return tar_stream.streamed(
        [
            (tar_stream.head(f"{_ARRIVING}/{name}", size, executable=True, mtime=mtime), size, parts)
            for name, size, mtime, parts in contents
        ]
    )
