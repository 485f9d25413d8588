"""Images in the engine: their tags, their content, and their identity.

An engine's id of an image depends on its image store, and on the containerd store it changes with attestations and
compression. The fingerprint covers what a container of the image sees, and nothing else.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.engine.client.api import DISK_SECONDS, quoted, request
from builder.engine.client.errors import EngineHTTPError
from builder.engine.reference import split_tag
from builder.errors import ConflictError, ImageStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint

_SECTION = "fingerprints"
_LARGEST_CACHE = 5000
_LISTING_WAIT = 300.0
_PAUSES = (0.0, 0.02, 0.1, 0.2, 0.5, 1.0, 2.0)  # seconds between listings, while others remove many images
_GONE = "code = NotFound"
# What decides how a container of the image runs; labels are about the image and not part of its behaviour.
_RUNTIME = (
    "Env",
    "Entrypoint",
    "Cmd",
    "WorkingDir",
    "User",
    "ExposedPorts",
    "Volumes",
    "StopSignal",
    "Shell",
    "Healthcheck",
)
# The only variant of arm64 there is; engines and tools leave it out or write it as they like.
_IMPLIED_VARIANTS = {"arm64": "v8"}


@dataclass(frozen=True)
class ImageDetails:
    """The description of an image by its engine.

    ``id`` is the engine's own and no identity across engines; ``size`` is in bytes, as the engine counts them (packed
    layers on the containerd store, unpacked ones on the classic one); ``created`` is RFC 3339; ``layers`` are the
    digests of the unpacked layers, lowest first; ``config`` is the runtime configuration without empty values;
    ``digests`` are its names by digest, which on the containerd store include those that no registry ever had.
    """

    id: str
    platform: str
    size: int
    created: str
    labels: Mapping[str, str]
    layers: tuple[str, ...]
    config: Mapping[str, Any]
    tags: tuple[str, ...]
    digests: tuple[str, ...] = ()


def listing(endpoint: Endpoint, filters: Mapping[str, Sequence[str]] | None = None) -> list[dict[str, Any]]:
    """Returns the images that match the filters of the engine's API (ImageList), as the engine lists them.

    An engine with the containerd store fails it where an image is removed at that moment: it is asked again.
    """
    query = {"filters": json.dumps(filters or {})}
    for pause in _PAUSES:
        try:
            return request(endpoint, "GET", "/images/json", query=query, timeout=_LISTING_WAIT) or []
        except EngineHTTPError as error:
            if not error.is_not_found and _GONE not in error.explanation:
                raise
            time.sleep(pause)
    return request(endpoint, "GET", "/images/json", query=query, timeout=_LISTING_WAIT) or []


def tags(endpoint: Endpoint, references: Iterable[str] = ()) -> dict[str, str]:
    """Returns every tag (``repository:tag``) with the engine's id of its image; only those of ``references``, if any.

    A reference is a repository (all its tags), ``repository:tag``, or a pattern of them (``vllm-node-*``). On the
    containerd store this takes 1 ms a layer, seconds for hundreds of images; `tag_cache.tags` only asks for changes.
    """
    patterns = list(references)
    images = listing(endpoint, {"reference": patterns} if patterns else {})
    return {tag: image["Id"] for image in images for tag in image["RepoTags"] or () if not tag.startswith("<none>")}


def disk_size(endpoint: Endpoint, name: str) -> int:
    """Returns the size in bytes of the image of the tag ``name``, as ``docker image ls`` counts it: on the containerd
    store packed and unpacked layers together. 0 where there is no such tag."""
    return sum(image["Size"] for image in listing(endpoint, {"reference": [name]}))


def inspect(endpoint: Endpoint, reference: str) -> ImageDetails | None:
    """Returns the image of this tag, digest or id; None where the engine has none."""
    try:
        description = request(endpoint, "GET", f"/images/{quoted(reference)}/json")
    except EngineHTTPError as error:
        if error.is_not_found:
            return None
        raise
    return parse_details(description)


def last_tagged(endpoint: Endpoint, name: str) -> str:
    """Returns the time when this image last got a tag (RFC 3339 UTC); empty where the engine does not record it."""
    description = request(endpoint, "GET", f"/images/{quoted(name)}/json")
    stamp = str((description.get("Metadata") or {}).get("LastTagTime") or "")
    return stamp if stamp.endswith("Z") and not stamp.startswith("0001") else ""


def parse_details(description: Mapping[str, Any]) -> ImageDetails:
    """Parses the engine API's description of an image."""
    config = description.get("Config") or {}
    return ImageDetails(
        id=description["Id"],
        platform=_platform(description),
        size=description.get("Size") or 0,
        created=description.get("Created") or "",
        labels=config.get("Labels") or {},
        layers=tuple((description.get("RootFS") or {}).get("Layers") or ()),
        # Stores differ in which empty values they keep.
        config={key: config[key] for key in _RUNTIME if config.get(key)},
        tags=tuple(tag for tag in description.get("RepoTags") or () if not tag.startswith("<none>")),
        digests=tuple(name for name in description.get("RepoDigests") or () if not name.startswith("<none>")),
    )


def fingerprint(image: ImageDetails) -> str:
    """Returns the image's identity: ``sha256:…`` over its platform, unpacked layers and runtime configuration.

    The same content has the same fingerprint on either image store, with or without attestations, however compressed,
    whatever its labels, tags and date.
    """
    from hashlib import sha256

    content = {"platform": image.platform, "layers": image.layers, "config": image.config}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{sha256(canonical.encode()).hexdigest()}"


def fingerprints(endpoint: Endpoint, ids: Iterable[str], cache: Path) -> dict[str, str]:
    """Returns the fingerprint of each image id; an id without an image in the engine is left out.

    An id is a digest over the content, so its fingerprint never changes: it is stored in the file ``cache``, and only
    ids that are not in there are inspected.
    """
    from builder.engine import cache_file

    cached = cache_file.load(cache).get(_SECTION, {})
    requested = set(ids)
    result = {id_: cached[id_] for id_ in requested if isinstance(cached.get(id_), str)}
    if missing := sorted(requested - result.keys()):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=4) as pool:
            for id_, image in zip(missing, pool.map(lambda id_: inspect(endpoint, id_), missing), strict=True):
                if image is not None:
                    result[id_] = fingerprint(image)
        cache_file.store(cache, _SECTION, {**(cached if len(cached) < _LARGEST_CACHE else {}), **result})
    return result


def tag(endpoint: Endpoint, image: str, name: str) -> None:
    """Gives ``image`` (tag, digest or id) the further tag ``name``, taking it from another image that has it.

    Raises ImageStateError where there is no such image.
    """
    repository, new_tag = split_tag(name)
    try:
        request(endpoint, "POST", f"/images/{quoted(image)}/tag", query={"repo": repository, "tag": new_tag})
    except EngineHTTPError as error:
        if not error.is_not_found:
            raise
        raise ImageStateError(f"the engine has no image {image}") from None


def remove_extra_tag(endpoint: Endpoint, name: str) -> bool:
    """Removes a tag from an image that has others; returns True if it did.

    Does nothing where no image has the tag, and where it is the image's last one: without it the image would be
    deleted, which is for `remove`.
    """
    image = inspect(endpoint, name)
    if image is None or len(image.tags) < 2:
        return False
    return remove(endpoint, name)


def remove(endpoint: Endpoint, name: str) -> bool:
    """Removes a tag, and with its last tag the image; returns False where no image has the tag.

    Raises ConflictError where a container uses the image: it is then not deleted.
    """
    try:
        request(endpoint, "DELETE", f"/images/{quoted(name)}", timeout=DISK_SECONDS)
    except EngineHTTPError as error:
        if error.is_not_found:
            return False
        if error.is_conflict:
            raise ConflictError(f"{name} is in use: {error.explanation}", hint="stop the container first") from None
        raise
    return True


def _platform(description: Mapping[str, Any]) -> str:
    architecture, variant = description.get("Architecture") or "", description.get("Variant") or ""
    if _IMPLIED_VARIANTS.get(architecture) == variant:
        variant = ""
    return "/".join(filter(None, (description.get("Os") or "linux", architecture, variant)))
