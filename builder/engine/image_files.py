"""The files of an image: what they are, read from the engine's export of a container that never starts.

Nothing of the image runs, so an image of a stranger, or for another processor, can be listed, too.
https://docs.docker.com/reference/api/engine/ (ContainerExport)
"""

from __future__ import annotations

import struct
import tarfile
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from builder.engine import containers
from builder.engine.client.api import stream
from builder.engine.image_archive import StreamFile
from builder.errors import ImageStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client.endpoint import Endpoint

_CHUNK = 1 << 20
_WAIT = 900.0  # seconds of silence: the engine unpacks an image first that has not been used
# What the engine itself puts into a container.
_OF_CONTAINERS = frozenset({".dockerenv", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab"})
_MOUNTED = ("dev/", "proc/", "sys/")
_ELF = b"\x7fELF"


@dataclass(frozen=True)
class ImageFile:
    """A file, folder or link: ``kind`` as tar has it, ``content`` the SHA-256 of its bytes or where a link leads,
    ``modified`` in seconds since 1970; ``is_compiled`` for an ELF file."""

    kind: str
    mode: int
    owner: str
    content: str
    modified: int
    is_compiled: bool = False


def listing(endpoint: Endpoint, image: str, labels: Mapping[str, str]) -> dict[str, ImageFile]:
    """Returns every file of ``image`` by its path. ``labels`` are those of the container that is made for it and
    removed again. Raises ImageStateError for a missing image, and for an export that breaks off."""
    files: dict[str, ImageFile] = {}
    with containers.created(endpoint, image, labels) as container_id:
        pieces = stream(endpoint, f"/containers/{container_id}/export", idle=_WAIT)
        try:
            with tarfile.open(fileobj=StreamFile(pieces, lambda _: None), mode="r|", bufsize=_CHUNK) as archive:
                for member in archive:
                    path = member.name.removeprefix("./")
                    if path not in _OF_CONTAINERS and not path.startswith(_MOUNTED):
                        files[f"/{path}"] = _file(archive, member)
        except tarfile.TarError as error:
            raise ImageStateError(f"the files of {image} cannot be read: {error}") from None
    return files


def elf_sections(content: bytes) -> dict[str, str]:
    """Returns the SHA-256 of each section of a 64-bit ELF file by its name; empty for any other file
    (https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.sheader.html)."""
    if not content.startswith(_ELF) or len(content) < 64 or content[4] != 2:
        return {}
    order = "<" if content[5] == 1 else ">"
    try:
        return _sections(content, order)
    except (struct.error, ValueError):
        return {}


def _sections(content: bytes, order: str) -> dict[str, str]:
    table, size, count, names = struct.unpack_from(f"{order}Q10xHHH", content, 40)
    headers = [struct.unpack_from(f"{order}II16xQQ", content, table + size * each) for each in range(count)]
    if names >= len(headers):
        return {}
    strings = content[headers[names][2] :]
    return {
        strings[name : strings.index(b"\0", name)].decode(errors="replace"): sha256(
            b"" if kind == 8 else content[offset : offset + length]  # 8: takes no place in the file
        ).hexdigest()
        for name, kind, offset, length in headers
        if kind
    }


def _file(archive: tarfile.TarFile, member: tarfile.TarInfo) -> ImageFile:
    content, is_compiled = member.linkname, False
    file = archive.extractfile(member) if member.isreg() else None
    if file:
        digest, piece = sha256(), file.read(_CHUNK)
        is_compiled = piece.startswith(_ELF)
        while piece:
            digest.update(piece)
            piece = file.read(_CHUNK)
        content = digest.hexdigest()
    owner = f"{member.uid}:{member.gid}"
    return ImageFile(member.type.decode(), member.mode, owner, content, int(member.mtime), is_compiled)
