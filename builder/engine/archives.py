"""Whole images move into and out of an engine as archives in the OCI image layout."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from builder.base import files, records, tar_stream
from builder.base.errors import TransferError
from builder.base.values import dataclass
from builder.engine import client
from builder.engine.client import NO_ROOM, NO_ROOM_HINT, Endpoint, quoted, stream
from builder.engine.images import DIGEST, split_tag, with_registry

# The OCI image layout: blobs named by their digests, and manifests that refer to one another.
# https://github.com/opencontainers/image-spec (image-layout.md, manifest.md, image-index.md). The engine's own
# archives also contain manifest.json, which the classic image store reads.

LAYOUT = "oci-layout"
INDEX = "index.json"
DOCKER_INDEX = "manifest.json"
LAYOUT_CONTENT = b'{"imageLayoutVersion":"1.0.0"}'
_BLOBS = "blobs/sha256/"
_DIGEST = re.compile(DIGEST)
INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
ReadBlob = Callable[[str], bytes]
"""Returns the content of the small blob with this digest."""
Receive = Callable[[str, int, "Iterator[bytes]"], None]
"""Receives a blob: its digest, its size and its pieces."""


@dataclass(frozen=True)
class Descriptor:
    """A manifest's reference to another blob; ``size`` is in bytes."""

    media_type: str
    digest: str
    size: int

    @property
    def json(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class Manifest:
    """An image for one platform: its configuration and its layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


def blob_name(digest: str) -> str:
    return _BLOBS + digest.removeprefix("sha256:")


def digest_of(name: str) -> str | None:
    """Returns the digest of the blob with this file name in an archive; None for any other file."""
    digest = f"sha256:{name.removeprefix(_BLOBS)}"
    return digest if name.startswith(_BLOBS) and _DIGEST.fullmatch(digest) else None


def descriptor(value: Mapping[str, Any]) -> Descriptor:
    """Parses a descriptor. Raises ValueError, KeyError or TypeError for any other value."""
    digest, size = value["digest"], value["size"]
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or type(size) is not int or size < 0:
        raise ValueError("the descriptor of a blob has no valid digest or size")
    return Descriptor(str(value["mediaType"]), digest, size)


def is_attestation(entry: Mapping[str, Any]) -> bool:
    """True if this entry of an index is BuildKit's attestation of another entry
    (https://docs.docker.com/build/metadata/attestations/attestation-storage/)."""
    return "vnd.docker.reference.type" in (entry.get("annotations") or {})


def read_image(top: Descriptor, get: ReadBlob) -> tuple[Manifest, dict[str, int]]:
    """Returns the only image below ``top``, and the size of each of its blobs by digest. The blobs include manifests
    and attestations. Raises ValueError, KeyError or TypeError for any other content, and the errors of ``get``."""
    content = records.parse_json(get(top.digest))
    sizes = {top.digest: top.size}
    images = []
    for entry in content["manifests"] if top.media_type in INDEX_TYPES else [top.json]:
        if entry["mediaType"] in INDEX_TYPES:
            raise ValueError("its index contains another index")
        own = descriptor(entry)
        value = records.parse_json(get(own.digest))
        manifest = Manifest(descriptor(value["config"]), tuple(descriptor(layer) for layer in value["layers"]))
        sizes |= {blob.digest: blob.size for blob in (own, manifest.config, *manifest.layers)}
        if not is_attestation(entry):
            images.append(manifest)
    if len(images) != 1:
        raise ValueError("it does not contain exactly one image")
    return images[0], sizes


def index_files(top: Descriptor, image: Manifest, tag: str) -> dict[str, bytes]:
    repository, version = split_tag(tag)
    full = f"{with_registry(repository)}:{version}"
    annotations = {"io.containerd.image.name": full, "org.opencontainers.image.ref.name": version}
    entries = [{**top.json, "annotations": annotations}]
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": entries}
    blobs = [blob_name(layer.digest) for layer in image.layers]
    docker = [{"Config": blob_name(image.config.digest), "RepoTags": [tag], "Layers": blobs}]
    return {INDEX: json.dumps(index).encode(), DOCKER_INDEX: json.dumps(docker).encode()}


def packed(
    top: Descriptor, image: Manifest, tag: str, blobs: Iterable[tuple[str, int, Iterable[bytes]]]
) -> tuple[int, Iterator[bytes]]:
    """The size in bytes and the content of an archive that an engine loads as ``tag``. Each of the ``blobs`` consists
    of its digest, its size and its pieces."""
    files = {LAYOUT: LAYOUT_CONTENT, **index_files(top, image, tag)}
    contents = [(blob_name(digest), size, pieces) for digest, size, pieces in blobs]
    contents += [(name, len(content), [content]) for name, content in files.items()]
    return tar_stream.streamed([(tar_stream.head(name, size), size, pieces) for name, size, pieces in contents])


# An engine loads and saves images as archives over its API: https://docs.docker.com/reference/api/engine/ (ImageLoad,
# ImageGet)

# An engine unpacks the archive before it responds. A layer of 20 GB takes minutes on a slow disk.
LOAD_IDLE = 3600.0
# The classic store packs the whole image before it sends anything.
_SAVE_WAIT = 3600.0
_CHUNK = 1 << 20
_LARGEST_MANIFEST = 1 << 20


def load_archive(endpoint: Endpoint, size: int, pieces: Iterable[bytes]) -> None:
    """Loads an archive of ``size`` bytes, given in ``pieces``. Raises TransferError if the engine refuses the archive,
    and the errors of ``pieces``. After an error, the image has no name in the engine."""
    status, body = client.upload(endpoint, "/images/load?quiet=1", size, pieces, LOAD_IDLE)
    values = [client.parse_json_line(line) or {} for line in body.splitlines()]
    message = next((str(error) for value in values if (error := value.get("error") or value.get("message"))), "")
    if status < 400 and not message:
        return
    hint = NO_ROOM_HINT if NO_ROOM in message.lower() else ""
    raise TransferError(f"the engine did not load the image: {message or f'status {status}'}", hint=hint)


def save_archive(
    endpoint: Endpoint, name: str, receive: Receive, on_bytes: Callable[[int], None]
) -> tuple[Descriptor, Manifest]:
    """Saves an image. ``receive`` gets each blob once: its digest, its size and its pieces. ``on_bytes`` gets the
    number of bytes that the engine has sent. Returns the image's descriptor and its manifest; on the classic store, the
    layers of the manifest are unpacked. Raises TransferError if the engine stops early; ValueError, KeyError or
    TypeError if the blobs of the archive differ from the blobs in its manifest."""
    small: dict[str, bytes] = {}
    large: set[str] = set()
    top: Descriptor | None = None
    pieces = stream(endpoint, f"/images/{quoted(name)}/get", timeout=_SAVE_WAIT, idle=_SAVE_WAIT)
    try:
        with tarfile.open(fileobj=StreamFile(pieces, on_bytes), mode="r|", bufsize=_CHUNK) as archive:
            for info in archive:
                file = archive.extractfile(info) if info.isreg() else None
                digest = digest_of(info.name)
                if file and digest and info.size <= _LARGEST_MANIFEST:
                    small[digest] = file.read()
                elif file and digest and digest not in large:
                    large.add(digest)
                    receive(digest, info.size, iter(partial(file.read, _CHUNK), b""))
                elif file and info.name == INDEX:
                    top = descriptor(records.parse_json(file.read())["manifests"][0])
    except (tarfile.TarError, EOFError):
        message = "the engine stopped while it was sending the image"
        hint = "`docker info` shows whether the engine runs; then run the command again"
        raise TransferError(message, hint=hint) from None
    if top is None:
        message = "the engine's archive is not an OCI image layout: the engine is older than Docker 25"
        raise TransferError(message, hint="update Docker to version 25 or later")
    image, named = read_image(top, small.__getitem__)
    # Small blobs that no manifest refers to describe layers for Docker before 1.10.
    if wrong := sorted(large - named.keys() | (named.keys() - large - small.keys())):
        raise ValueError(f"the engine's archive lacks {wrong[0]}, or its manifest does not list it")
    for digest in sorted(named.keys() - large):
        receive(digest, len(small[digest]), iter([small[digest]]))
    return top, image


class StreamFile(io.RawIOBase):
    """A readable file of the pieces of a stream."""

    def __init__(self, pieces: Iterator[bytes], on_bytes: Callable[[int], None]) -> None:
        self._pieces = pieces
        self._rest = b""
        self._on_bytes = on_bytes
        self._received = 0

    def read(self, size: int = -1, /) -> bytes:
        if not self._rest:
            self._rest = next((piece for piece in self._pieces if piece), b"")
            self._received += len(self._rest)
            self._on_bytes(self._received)
        content, self._rest = self._rest[:size], self._rest[size:]
        return content


# A folder in the OCI image layout. It contains any number of images, and stores each shared layer once.


def folder_has(folder: Path, digest: str) -> bool:
    """True if the folder contains the complete image with this digest: all blobs of its manifests, in full size."""
    path = folder / blob_name(digest)
    if not _DIGEST.fullmatch(digest) or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            content = records.parse_json(file.read(_LARGEST_MANIFEST))
        within = content.get("manifests") or ()
        blobs = [descriptor(each) for each in within or (content["config"], *content["layers"])]
        whole = all((folder / blob_name(each.digest)).stat().st_size == each.size for each in blobs)
        return whole and all(folder_has(folder, each["digest"]) for each in within)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def store_blob(folder: Path, digest: str, size: int, pieces: Iterable[bytes]) -> None:
    """Writes a blob into a folder, unless it already exists. Raises TransferError if the content has another digest, or
    does not fit on the disk."""
    path = folder / blob_name(digest)
    if path.is_file() and path.stat().st_size == size:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the folder {path.parent} cannot be created: {error.strerror}"
        hint = "`mirror:` in builder.yaml must name a folder that you can write to"
        raise TransferError(message, hint=hint) from None
    message = f"a part of the image arrived damaged: it does not match {digest}"
    damaged = TransferError(message, hint="run the command again")
    with files.written_large_file(path, replace=True) as file:
        for piece in verified(pieces, digest, damaged):
            file.write(piece)
            if file.tell() > size:
                raise damaged


def verified(pieces: Iterable[bytes], digest: str, damaged: Exception) -> Iterator[bytes]:
    """Yields ``pieces``. Raises ``damaged`` after the last piece if the whole content has another digest."""
    content = hashlib.sha256()
    for piece in pieces:
        content.update(piece)
        yield piece
    if f"sha256:{content.hexdigest()}" != digest:
        raise damaged


def name_image(folder: Path, top: Descriptor, name: str) -> None:
    """Adds an image to the folder's index as ``name``. The folder already contains the image's blobs."""
    with files.locked(folder / ".lock"):
        try:
            entries = records.parse_json(files.read_plain_file(folder / INDEX, _LARGEST_MANIFEST))["manifests"]
        except (OSError, ValueError, KeyError, TypeError):
            entries = []
        entries = [entry for entry in entries if entry.get("digest") != top.digest]
        entries.append({**top.json, "annotations": {"org.opencontainers.image.ref.name": name}})
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": entries}
        files.write_atomically(folder / LAYOUT, LAYOUT_CONTENT)
        files.write_atomically(folder / INDEX, json.dumps(index, indent=1).encode())
