"""An image as an OCI image layout holds it: blobs named by their digests, manifests that refer to one another.

https://github.com/opencontainers/image-spec (image-layout.md, manifest.md, image-index.md). The engine's own archives
hold manifest.json beside it, which the classic image store reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
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
_ATTESTATION = "vnd.docker.reference.type"
ReadBlob = Callable[[str], bytes]
"""The content of a small blob, by its digest."""


@dataclass(frozen=True)
class Descriptor:
    """What a manifest says of another blob; ``size`` in bytes."""

    media_type: str
    digest: str
    size: int

    @property
    def json(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class Manifest:
    """One image of one platform: its configuration, and its layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


def blob_name(digest: str) -> str:
    """What a blob is called in an archive."""
    return _BLOBS + digest.removeprefix("sha256:")


def digest_of(name: str) -> str | None:
    """The digest of the blob that is called so in an archive; None for anything else."""
    digest = f"sha256:{name.removeprefix(_BLOBS)}"
    return digest if name.startswith(_BLOBS) and _DIGEST.fullmatch(digest) else None


def descriptor(said: Mapping[str, Any]) -> Descriptor:
    """Raises ValueError, KeyError or TypeError for what is none."""
    digest, size = said["digest"], said["size"]
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or type(size) is not int or size < 0:
        raise ValueError("a blob is not named by its digest and size")
    return Descriptor(str(said["mediaType"]), digest, size)


def is_index(media_type: str) -> bool:
    return media_type in _INDEX_TYPES


def manifests(top: Descriptor, get: ReadBlob) -> Iterator[tuple[Descriptor, Manifest, bool]]:
    """Every manifest that ``top`` stands for, and whether it is an image and not an attestation of one.

    Raises ValueError, KeyError or TypeError where one cannot be made sense of, and whatever ``get`` does.
    """
    said = json.loads(get(top.digest))
    if not is_index(top.media_type):
        yield top, _manifest(said), True
        return
    for child in said["manifests"]:
        if is_index(child["mediaType"]):
            raise ValueError("an index within an index")
        found = descriptor(child)
        yield found, _manifest(json.loads(get(found.digest))), _ATTESTATION not in (child.get("annotations") or {})


def _manifest(said: Mapping[str, Any]) -> Manifest:
    return Manifest(descriptor(said["config"]), tuple(descriptor(layer) for layer in said["layers"]))


def image_of(top: Descriptor, get: ReadBlob) -> Manifest:
    """The one image that ``top`` stands for. Raises as `manifests` does, and ValueError where there are several."""
    found = [manifest for _, manifest, is_image in manifests(top, get) if is_image]
    if len(found) != 1:
        raise ValueError("it is for several platforms")
    return found[0]


def referenced(top: Descriptor, get: ReadBlob) -> dict[str, int]:
    """The size of every blob of the image, by digest, manifests included. Raises as `manifests` does."""
    sizes = {top.digest: top.size}
    for own, manifest, _ in manifests(top, get):
        sizes |= {one.digest: one.size for one in (own, manifest.config, *manifest.layers)}
    return sizes


def tagged(top: Descriptor, image: Manifest, tag: str) -> dict[str, bytes]:
    """The files that make an archive of these blobs load under the name ``tag``."""
    repository, number = split_tag(tag)
    annotations = {
        "io.containerd.image.name": f"{with_registry(repository)}:{number}",
        "org.opencontainers.image.ref.name": number,
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
