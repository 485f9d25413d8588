"""A numbered image as a file: an OCI archive that also carries everything the project records of the number.

The archive is a tar of an OCI image layout. Its folder ``builder/`` holds the number's build directory (``build/``),
its excerpt of images.lock, and, written last, ``archive.json`` with its sha256: the image, the sha256 of the other
files in the folder, and the image's evidence.
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
    from builder.evidence.record import Evidence
    from builder.storage.tar_stream import Member, Writer

FOLDER = "builder/"
ABOUT = f"{FOLDER}archive.json"
SEAL = f"{ABOUT}.sha256"
LOCK = f"{FOLDER}images.lock"
BUILD = f"{FOLDER}build/"
VERSION = 1


@dataclass(frozen=True)
class Archive:
    """The contents of an archive: the number and its excerpt of images.lock (``part``), its build directory (empty if
    that was lost), its blobs by digest, and its evidence."""

    name: ImageName
    part: Lock
    build: Mapping[str, StagedFile]
    top: Descriptor
    image: Manifest
    blobs: Mapping[str, Member]
    evidence: tuple[Evidence, ...] = ()

    @property
    def fingerprint(self) -> str:
        return self.part.images[self.name.repository].numbers[self.name.number].fingerprint


def lock_excerpt(lock: Lock, name: ImageName) -> Lock:
    """The excerpt of images.lock for a number: its record, and the models paired with it. ``next`` stays that of the
    repository, since all smaller numbers are taken."""
    repository = lock.images[name.repository]
    image = replace(repository.numbers[name.number], pruned=None)
    models = {model: Model(lock.models[model].pairing) for model in lock.models_on(name)}
    return Lock(images={name.repository: Repository(repository.next, numbers={name.number: image})}, models=models)


def write_metadata(
    writer: Writer,
    name: ImageName,
    part: Lock,
    build: Mapping[str, StagedFile],
    top: Descriptor,
    evidence: Mapping[str, str],
) -> None:
    """Writes the folder ``builder/``. The ``evidence`` goes into archive.json, by file name: programs that know none of
    it read that file all the same, and refuse further ones."""
    files = {LOCK: StagedFile(text.dump(part).encode())} | {BUILD + path: file for path, file in build.items()}
    for path, file in files.items():
        writer.add(path, file.content, executable=file.executable)
    about = {
        "version": VERSION,
        "image": str(name),
        "manifest": top.json,
        "files": {path: sha256(file.content).hexdigest() for path, file in files.items()},
        **({"evidence": dict(evidence)} if evidence else {}),
    }
    content = json.dumps(about, indent=1).encode()
    writer.add(ABOUT, content)
    writer.add(SEAL, seal(content))


def seal(content: bytes) -> bytes:
    """The content of an archive's last file: the sha256 of archive.json, in the format of `sha256sum`."""
    return f"{sha256(content).hexdigest()}  {ABOUT.removeprefix(FOLDER)}\n".encode()


def damaged(path: Path, why: str) -> TransferError:
    """The error for a file that differs from what was written."""
    return TransferError(f"{path} is damaged: {why}", hint="copy the file again, or export the image again")


def refused(path: Path, why: str) -> TransferError:
    """The error for a file with something in it that no version of this program writes there."""
    return TransferError(
        f"{path} is not taken: {why}",
        hint="`builder export-image` does not write that: ask whoever made the file",
    )


def unreadable(path: Path, error: OSError) -> TransferError:
    """The error for a file that the disk fails to read."""
    return TransferError(f"{path} cannot be read: {error.strerror}", hint="check the disk that it is on")


def load_stream(archive: Archive, file: IO[bytes], path: Path, tag: str) -> tuple[int, Iterator[bytes]]:
    """The size in bytes and the content of an archive that the engine loads as ``tag``. Every blob is compared with its
    digest as it is read; the iterator raises TransferError where they differ."""
    small = {oci_layout.LAYOUT: oci_layout.LAYOUT_CONTENT, **oci_layout.index_files(archive.top, archive.image, tag)}
    sizes = {name: len(content) for name, content in small.items()}
    sizes |= {oci_layout.blob_name(digest): member.size for digest, member in archive.blobs.items()}
    parts = (len(tar_stream.head(name, size)) + size + len(tar_stream.padding(size)) for name, size in sizes.items())

    def content() -> Iterator[bytes]:
        for digest, member in archive.blobs.items():
            yield tar_stream.head(oci_layout.blob_name(digest), member.size)
            digest_of_content = sha256()
            try:
                for piece in tar_stream.pieces(file, member):
                    digest_of_content.update(piece)
                    yield piece
            except ValueError as error:
                raise damaged(path, str(error)) from None
            except OSError as error:
                raise unreadable(path, error) from None
            if f"sha256:{digest_of_content.hexdigest()}" != digest:
                raise damaged(path, f"the content of {digest} does not match")
            yield tar_stream.padding(member.size)
        for name, file_content in small.items():
            yield tar_stream.head(name, len(file_content)) + file_content + tar_stream.padding(len(file_content))
        yield tar_stream.END

    return sum(parts) + len(tar_stream.END), content()
