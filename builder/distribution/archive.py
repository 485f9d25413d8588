"""A numbered image as a file: an OCI archive with all that this project knows of the number beside it.

The archive is a tar of an OCI image layout. Its folder ``builder/`` holds the number's build directory (``build/``),
its part of images.lock, and, written last, ``archive.json`` with its sha256: what the image is, which other one it
needs, and the sha256 of the other files in the folder. Where it needs another image, it lacks the layers of that one
and the two files by which other programs load an archive: they would make half an image of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import IO, TYPE_CHECKING

from builder.engine.registry import oci_layout
from builder.errors import TransferError
from builder.lock import text
from builder.lock.model import ImageName, Lock, Model, Repository
from builder.plan.model import StagedFile
from builder.storage import tar_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.engine.registry.oci_layout import Descriptor, Manifest
    from builder.storage.tar_stream import Member, Writer

FOLDER = "builder/"
ABOUT = f"{FOLDER}archive.json"
SEAL = f"{ABOUT}.sha256"
LOCK = f"{FOLDER}images.lock"
BUILD = f"{FOLDER}build/"
VERSION = 1


@dataclass(frozen=True)
class RequiredImage:
    """The image whose layers an archive leaves out."""

    image: ImageName
    fingerprint: str


@dataclass(frozen=True)
class Archive:
    """What a file holds: the number and its part of images.lock, its build directory (empty where that was lost), the
    blobs by digest, and what of the image is left out."""

    name: ImageName
    part: Lock
    build: Mapping[str, StagedFile]
    needs: RequiredImage | None
    top: Descriptor
    image: Manifest
    blobs: Mapping[str, Member]

    @property
    def fingerprint(self) -> str:
        return self.part.images[self.name.repository].numbers[self.name.number].fingerprint

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """The layers that are in it."""
        return tuple(layer for layer in self.image.layers if layer.digest in self.blobs)


def lock_excerpt(lock: Lock, name: ImageName) -> Lock:
    """What an archive says of a number: its record, and the models that it serves. ``next`` is that of the whole, since
    the numbers below it are given."""
    held = lock.images[name.repository]
    image = replace(held.numbers[name.number], pruned=None)
    models = {model: Model(lock.models[model].pairing) for model in lock.models_on(name)}
    return Lock(images={name.repository: Repository(held.next, numbers={name.number: image})}, models=models)


def write_metadata(
    writer: Writer,
    name: ImageName,
    part: Lock,
    build: Mapping[str, StagedFile],
    needs: RequiredImage | None,
    top: Descriptor,
) -> None:
    """Writes the folder ``builder/``."""
    files = {LOCK: StagedFile(text.dump(part).encode())} | {BUILD + path: file for path, file in build.items()}
    for path, file in files.items():
        writer.add(path, file.content, executable=file.executable)
    about = {
        "version": VERSION,
        "image": str(name),
        "needs": {"image": str(needs.image), "fingerprint": needs.fingerprint} if needs else None,
        "manifest": top.json,
        "files": {path: sha256(file.content).hexdigest() for path, file in files.items()},
    }
    content = json.dumps(about, indent=1).encode()
    writer.add(ABOUT, content)
    writer.add(SEAL, seal(content))


def seal(content: bytes) -> bytes:
    """The sha256 of archive.json, as `sha256sum` writes it: the last file of an archive."""
    return f"{sha256(content).hexdigest()}  {ABOUT.removeprefix(FOLDER)}\n".encode()


def damaged(path: Path, why: str) -> TransferError:
    """The file is not what was written."""
    return TransferError(f"{path} is damaged: {why}", hint="copy the file again, or export the image again")


def unreadable(path: Path, error: OSError) -> TransferError:
    """The disk does not give the file."""
    return TransferError(f"{path} cannot be read: {error.strerror}", hint="look after the disk that it is on")


def load_stream(archive: Archive, file: IO[bytes], path: Path, tag: str) -> tuple[int, Iterator[bytes]]:
    """The size in bytes of an archive that makes the engine call the image ``tag``, and its content. Every blob is
    compared with its digest while it is read: TransferError in the middle of it where one is another."""
    small = {oci_layout.LAYOUT: oci_layout.LAYOUT_CONTENT, **oci_layout.tagged(archive.top, archive.image, tag)}
    sizes = {name: len(content) for name, content in small.items()}
    sizes |= {oci_layout.blob_name(digest): member.size for digest, member in archive.blobs.items()}
    parts = (len(tar_stream.head(name, size)) + size + len(tar_stream.padding(size)) for name, size in sizes.items())

    def content() -> Iterator[bytes]:
        for digest, member in archive.blobs.items():
            yield tar_stream.head(oci_layout.blob_name(digest), member.size)
            found = sha256()
            try:
                for piece in tar_stream.pieces(file, member):
                    found.update(piece)
                    yield piece
            except ValueError as error:
                raise damaged(path, str(error)) from None
            except OSError as error:
                raise unreadable(path, error) from None
            if f"sha256:{found.hexdigest()}" != digest:
                raise damaged(path, f"the content of {digest} is another")
            yield tar_stream.padding(member.size)
        for name, one in small.items():
            yield tar_stream.head(name, len(one)) + one + tar_stream.padding(len(one))
        yield tar_stream.END

    return sum(parts) + len(tar_stream.END), content()
