"""The OCI image layout: blobs named by their digests, and manifests that refer to one another.

https://github.com/opencontainers/image-spec (image-layout.md, manifest.md, image-index.md). The engine's own archives
hold manifest.json beside it, which the classic image store reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from builder.engine.reference import DIGEST, split_tag, with_registry

LAYOUT = "oci-layout"
INDEX = "index.json"
DOCKER_INDEX = "manifest.json"
LAYOUT_CONTENT = b'{"imageLayoutVersion":"1.0.0"}'
_BLOBS = "blobs/sha256/"
_DIGEST = re.compile(DIGEST)
_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
ReadBlob = Callable[[str], bytes]
"""Returns the content of a small blob, by its digest."""


@dataclass(frozen=True)
class Descriptor:
    """A manifest's reference to another blob; ``size`` is in bytes."""

    media_type: str
    digest: str
    size: int

    @property
    def json(self) -> dict[str, Any]:
        """The descriptor as it stands in a manifest or an index."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class Manifest:
    """An image of one platform: its configuration, and its layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


def blob_name(digest: str) -> str:
    """Returns the file name of a blob in an archive."""
    return _BLOBS + digest.removeprefix("sha256:")


def digest_of(name: str) -> str | None:
    """Returns the digest of the blob of this file name in an archive; None for any other file."""
    digest = f"sha256:{name.removeprefix(_BLOBS)}"
    return digest if name.startswith(_BLOBS) and _DIGEST.fullmatch(digest) else None


def descriptor(value: Mapping[str, Any]) -> Descriptor:
    """Parses a descriptor. Raises ValueError, KeyError or TypeError for any other value."""
    digest, size = value["digest"], value["size"]
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or type(size) is not int or size < 0:
        raise ValueError("a blob is not named by its digest and size")
    return Descriptor(str(value["mediaType"]), digest, size)


def is_index(media_type: str) -> bool:
    """True if this is the media type of an index, of either standard."""
    return media_type in _INDEX_TYPES


def is_attestation(entry: Mapping[str, Any]) -> bool:
    """True if this entry of an index is BuildKit's attestation of another one
    (https://docs.docker.com/build/metadata/attestations/attestation-storage/)."""
    return "vnd.docker.reference.type" in (entry.get("annotations") or {})


def read_image(top: Descriptor, get: ReadBlob) -> tuple[Manifest, dict[str, int]]:
    """Returns the only image below ``top``, and the size of each of its blobs by digest, with all manifests and
    attestations.

    Raises ValueError, KeyError or TypeError for a manifest that is invalid and where there are several images, and
    whatever ``get`` raises.
    """
    content = json.loads(get(top.digest))
    sizes = {top.digest: top.size}
    images = []
    for entry in content["manifests"] if is_index(top.media_type) else [top.json]:
        if is_index(entry["mediaType"]):
            raise ValueError("an index within an index")
        own = descriptor(entry)
        value = json.loads(get(own.digest))
        manifest = Manifest(descriptor(value["config"]), tuple(descriptor(layer) for layer in value["layers"]))
        sizes |= {blob.digest: blob.size for blob in (own, manifest.config, *manifest.layers)}
        if not is_attestation(entry):
            images.append(manifest)
    if len(images) != 1:
        raise ValueError("it is for several platforms")
    return images[0], sizes


def index_files(top: Descriptor, image: Manifest, tag: str) -> dict[str, bytes]:
    """Returns the files that make an archive of these blobs load under the name ``tag``."""
    repository, version = split_tag(tag)
    annotations = {
        "io.containerd.image.name": f"{with_registry(repository)}:{version}",
        "org.opencontainers.image.ref.name": version,
    }
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX_TYPES[0],
        "manifests": [{**top.json, "annotations": annotations}],
    }
    docker = {
        "Config": blob_name(image.config.digest),
        "RepoTags": [tag],
        "Layers": [blob_name(layer.digest) for layer in image.layers],
    }
    return {INDEX: json.dumps(index).encode(), DOCKER_INDEX: json.dumps([docker]).encode()}
