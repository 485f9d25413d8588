"""Images in the engine: their tags, what is in them, and their identity.

An engine's id of an image depends on its image store, and on the containerd store it changes with attestations and
compression. The fingerprint is over what a container of the image would see, and nothing else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.engine.client.api import quoted, request
from builder.engine.client.errors import EngineHTTPError
from builder.errors import ConflictError, ImageStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint

_SECTION = "fingerprints"
_REMEMBERED = 5000
_LISTING_WAIT = 300.0
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
    """One image, as its engine describes it.

    ``id`` is the engine's own and no identity across engines; ``size`` is in bytes, of what the engine counts
    (packed layers on the containerd store, unpacked ones on the classic one); ``created`` is RFC 3339; ``layers`` are
    the digests of the unpacked layers, lowest first; ``config`` is the runtime configuration, empty values left out.
    """

    id: str
    platform: str
    size: int
    created: str
    labels: Mapping[str, str]
    layers: tuple[str, ...]
    config: Mapping[str, Any]
    tags: tuple[str, ...]


def tags(endpoint: Endpoint, references: Iterable[str] = ()) -> dict[str, str]:
    """Every tag (``repository:tag``) with the engine's id of its image; of ``references`` only, where any are given.

    A reference is a repository (all its tags), ``repository:tag``, or a pattern of them (``vllm-node-*``). The engine
    with the containerd store takes about 1 ms a layer of every image, seconds for hundreds of them; `tagcache.tags`
    asks for what changed only.
    """
    query: dict[str, str | int] = {}
    if wanted := list(references):
        query["filters"] = json.dumps({"reference": wanted})
    found = request(endpoint, "GET", "/images/json", query=query, timeout=_LISTING_WAIT) or []
    return {tag: image["Id"] for image in found for tag in image["RepoTags"] or () if not tag.startswith("<none>")}


def disk_size(endpoint: Endpoint, name: str) -> int:
    """The bytes that the image of the tag ``name`` takes, as ``docker image ls`` counts them: on the containerd store
    packed and unpacked layers together. 0 where there is no such tag."""
    query = {"filters": json.dumps({"reference": [name]})}
    return sum(image["Size"] for image in request(endpoint, "GET", "/images/json", query=query) or [])


def inspect(endpoint: Endpoint, reference: str) -> ImageDetails | None:
    """The image of this tag, digest or id; None where the engine has none."""
    try:
        said = request(endpoint, "GET", f"/images/{quoted(reference)}/json")
    except EngineHTTPError as error:
        if error.is_not_found:
            return None
        raise
    return parse_details(said)


def last_tagged(endpoint: Endpoint, name: str) -> str:
    """When the image of this tag was last given a name (RFC 3339 UTC); empty where the engine does not say."""
    said = request(endpoint, "GET", f"/images/{quoted(name)}/json")
    stamp = str((said.get("Metadata") or {}).get("LastTagTime") or "")
    return stamp if stamp.endswith("Z") and not stamp.startswith("0001") else ""


def parse_details(said: Mapping[str, Any]) -> ImageDetails:
    """The engine's description of an image, as its API writes it, in this program's form."""
    config = said.get("Config") or {}
    return ImageDetails(
        id=said["Id"],
        platform=_platform(said),
        size=said.get("Size") or 0,
        created=said.get("Created") or "",
        labels=config.get("Labels") or {},
        layers=tuple((said.get("RootFS") or {}).get("Layers") or ()),
        # Stores differ in which empty values they keep.
        config={key: config[key] for key in _RUNTIME if config.get(key)},
        tags=tuple(tag for tag in said.get("RepoTags") or () if not tag.startswith("<none>")),
    )


def fingerprint(image: ImageDetails) -> str:
    """``sha256:…`` over the platform, the unpacked layers and the runtime configuration.

    The same for the same content on either image store, with or without attestations, however compressed, whatever its
    labels, tags and date.
    """
    from hashlib import sha256

    content = {"platform": image.platform, "layers": image.layers, "config": image.config}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{sha256(canonical.encode()).hexdigest()}"


def fingerprints(endpoint: Endpoint, ids: Iterable[str], cache: Path) -> dict[str, str]:
    """The fingerprint of each image id that the engine has; an id without an image is left out.

    An id is a digest over the content, so what it stands for never changes: it is remembered in the file ``cache``, and
    only unknown ids are inspected.
    """
    from builder.engine import cache_file

    known = cache_file.load(cache).get(_SECTION, {})
    wanted = set(ids)
    found = {id_: known[id_] for id_ in wanted if isinstance(known.get(id_), str)}
    if missing := sorted(wanted - found.keys()):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=4) as pool:
            for id_, image in zip(missing, pool.map(lambda one: inspect(endpoint, one), missing), strict=True):
                if image is not None:
                    found[id_] = fingerprint(image)
        cache_file.store(cache, _SECTION, {**(known if len(known) < _REMEMBERED else {}), **found})
    return found


def tag(endpoint: Endpoint, image: str, name: str) -> None:
    """Gives ``image`` (tag, digest or id) the further name ``name``, taking it from another image that has it.

    Raises ImageStateError where there is no such image.
    """
    repository, number = split(name)
    try:
        request(endpoint, "POST", f"/images/{quoted(image)}/tag", query={"repo": repository, "tag": number})
    except EngineHTTPError as error:
        if not error.is_not_found:
            raise
        raise ImageStateError(f"the engine has no image {image}") from None


def remove_extra_tag(endpoint: Endpoint, name: str) -> bool:
    """Removes a name from an image that has others, and says whether it did.

    False, with nothing done, where no image has the name, and where it is the image's last one: without it the image
    would be deleted. `remove` does that.
    """
    found = inspect(endpoint, name)
    if found is None or len(found.tags) < 2:
        return False
    return remove(endpoint, name)


def remove(endpoint: Endpoint, name: str) -> bool:
    """Removes a name, and with an image's last name the image; False where no image has the name.

    Raises ConflictError where a container uses the image, since it is then not deleted.
    """
    try:
        request(endpoint, "DELETE", f"/images/{quoted(name)}", timeout=600)
    except EngineHTTPError as error:
        if error.is_not_found:
            return False
        if error.is_conflict:
            raise ConflictError(f"{name} is in use: {error.explanation}", hint="stop the container first") from None
        raise
    return True


def split(name: str) -> tuple[str, str]:
    """``repository:tag`` as its two parts; a colon before a slash belongs to a registry's port."""
    repository, colon, number = name.rpartition(":")
    if not colon or "/" in number:
        return name, "latest"
    return repository, number


def _platform(said: Mapping[str, Any]) -> str:
    architecture, variant = said.get("Architecture") or "", said.get("Variant") or ""
    if _IMPLIED_VARIANTS.get(architecture) == variant:
        variant = ""
    return "/".join(filter(None, (said.get("Os") or "linux", architecture, variant)))
