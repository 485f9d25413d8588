"""Images as archives that an engine loads and saves, over its API.

https://docs.docker.com/reference/api/engine/ (ImageLoad, ImageGet)
"""

from __future__ import annotations

import io
import json
import tarfile
from typing import IO, TYPE_CHECKING

from builder.engine.client import json_lines, transport
from builder.engine.client.api import quoted, stream
from builder.engine.client.errors import NO_ROOM, NO_ROOM_HINT
from builder.engine.registry import oci_layout
from builder.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.oci_layout import Descriptor, Manifest

# An engine unpacks the archive before it responds: a layer of 20 GB takes minutes on a slow disk.
LOAD_IDLE = 3600.0
# The classic store packs the whole image before it sends anything.
_SAVE_WAIT = 3600.0
_CHUNK = 1 << 20
_LARGEST_MANIFEST = 1 << 20


def load(endpoint: Endpoint, size: int, pieces: Iterable[bytes]) -> None:
    """Loads an archive of ``size`` bytes, given in ``pieces``.

    Raises TransferError where the engine refuses the archive, and whatever ``pieces`` raise: no image has a name then.
    """
    status, body = transport.upload(endpoint, "/images/load?quiet=1", size, pieces, "application/x-tar", LOAD_IDLE)
    message = _error_message(body)
    if status < 400 and not message:
        return
    hint = NO_ROOM_HINT if NO_ROOM in message.lower() else ""
    raise TransferError(f"the engine did not load the image: {message or f'status {status}'}", hint=hint)


def _error_message(body: bytes) -> str:
    for line in body.splitlines():
        value = json_lines.parse(line) or {}
        if error := value.get("error") or value.get("message"):
            return str(error)
    return ""


def save(
    endpoint: Endpoint,
    name: str,
    receive: Callable[[str, int, Iterator[bytes]], None],
    on_bytes: Callable[[int], None],
) -> tuple[Descriptor, Manifest]:
    """Saves an image: ``receive`` gets the digest, the size and the pieces of every blob, each once. Returns the
    image's descriptor and its manifest; ``on_bytes`` gets the number of bytes that the engine has sent.

    The classic image store keeps layers unpacked: there a layer's digest is that of the unpacked layer.

    Raises TransferError where the engine stops midway; ValueError, KeyError and TypeError where the archive does not
    hold exactly the blobs that its manifest names.
    """
    small: dict[str, bytes] = {}
    large: set[str] = set()
    top: Descriptor | None = None
    pieces = stream(endpoint, f"/images/{quoted(name)}/get", timeout=_SAVE_WAIT, idle=_SAVE_WAIT)
    try:
        with tarfile.open(fileobj=StreamFile(pieces, on_bytes), mode="r|", bufsize=_CHUNK) as archive:
            for info in archive:
                file = archive.extractfile(info) if info.isreg() else None
                digest = oci_layout.digest_of(info.name)
                if file and digest and info.size <= _LARGEST_MANIFEST:
                    small[digest] = file.read()
                elif file and digest and digest not in large:
                    large.add(digest)
                    receive(digest, info.size, _chunks(file))
                elif file and info.name == oci_layout.INDEX:
                    top = oci_layout.descriptor(json.loads(file.read())["manifests"][0])
    except (tarfile.TarError, EOFError):
        raise TransferError(
            "the engine stopped in the middle of the image", hint="`docker info` tells if it runs; then run this again"
        ) from None
    if top is None:
        raise ValueError("the engine's archive is no OCI image layout: it is older than Docker 25")
    image, named = oci_layout.read_image(top, small.__getitem__)
    # Small blobs that no manifest refers to describe layers for Docker before 1.10.
    if wrong := sorted(large - named.keys() | (named.keys() - large - small.keys())):
        raise ValueError(f"the engine left out {wrong[0]}, or added it")
    for digest in sorted(named.keys() - large):
        receive(digest, len(small[digest]), iter([small[digest]]))
    return top, image


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


class StreamFile(io.RawIOBase):
    """A readable file over the pieces of a stream."""

    def __init__(self, pieces: Iterator[bytes], on_bytes: Callable[[int], None]) -> None:
        self._pieces = pieces
        self._rest = b""
        self._on_bytes = on_bytes
        self._received = 0

    def read(self, size: int = -1, /) -> bytes:
        """Returns up to ``size`` bytes, none at the end."""
        if not self._rest:
            self._rest = next((piece for piece in self._pieces if piece), b"")
            self._received += len(self._rest)
            self._on_bytes(self._received)
        content, self._rest = self._rest[:size], self._rest[size:]
        return content
