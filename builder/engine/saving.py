"""The engine's own export of an image, which is all there is on the classic image store.

There, layers are kept unpacked: a blob's digest is that of the unpacked layer.
https://docs.docker.com/reference/api/engine/ (ImageGet).
"""

from __future__ import annotations

import io
import json
import tarfile
from typing import IO, TYPE_CHECKING

from builder.engine.client.api import quoted, stream
from builder.engine.registry import oci_layout
from builder.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.oci_layout import Descriptor
    from builder.engine.registry.push_receiver import ReceiveBlob

_WAIT = 3600.0  # the classic store packs all of it before it says anything
_CHUNK = 1 << 20
_SMALL = 1 << 20


def save(
    endpoint: Endpoint, name: str, has: Callable[[str], bool], take: ReceiveBlob, on_bytes: Callable[[int], None]
) -> tuple[Descriptor, dict[str, bytes]]:
    """Hands every blob of the image that one ``has`` not to ``take``; returns what the image is called by, and the
    blobs small enough to be manifests. ``on_bytes`` gets how many bytes the engine has sent.

    Raises TransferError where the engine stops in the middle, ValueError and KeyError for an archive without its index.
    """
    small: dict[str, bytes] = {}
    top: Descriptor | None = None
    pieces = stream(endpoint, f"/images/{quoted(name)}/get", timeout=_WAIT, idle=_WAIT)
    try:
        with tarfile.open(fileobj=_Body(pieces, on_bytes), mode="r|", bufsize=_CHUNK) as archive:
            for info in archive:
                file = archive.extractfile(info) if info.isreg() else None
                digest = oci_layout.digest_of(info.name)
                if file and digest and info.size <= _SMALL:
                    small[digest] = file.read()
                elif file and digest and not has(digest):
                    take(digest, info.size, _pieces(file))
                elif file and info.name == oci_layout.INDEX:
                    top = oci_layout.descriptor(json.loads(file.read())["manifests"][0])
    except (tarfile.TarError, EOFError):
        raise TransferError(
            "the engine stopped in the middle of the image", hint="is it running? Then try again"
        ) from None
    if top is None:
        raise ValueError("the engine's archive is no OCI image layout: it is older than Docker 25")
    # Among the small ones are descriptions of layers that only Docker before 1.10 read.
    for digest in oci_layout.referenced(top, small.__getitem__):
        if digest in small and not has(digest):
            take(digest, len(small[digest]), iter([small[digest]]))
    return top, small


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_CHUNK):
        yield piece


class _Body(io.RawIOBase):
    """What comes from the engine, as a file to read from."""

    def __init__(self, pieces: Iterator[bytes], on_bytes: Callable[[int], None]) -> None:
        self._pieces = pieces
        self._rest = b""
        self._on_bytes = on_bytes
        self._came = 0

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes, none at the end."""
        if not self._rest:
            self._rest = next((piece for piece in self._pieces if piece), b"")
            self._came += len(self._rest)
            self._on_bytes(self._came)
        found, self._rest = self._rest[:size], self._rest[size:]
        return found
