"""Images in the engine: their names, content, identity and disk space.

The fingerprint covers exactly what a container of the image sees. An engine's id is not an identity."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import files, processes, records
from builder.base.errors import ConflictError, ImageStateError
from builder.base.values import dataclass
from builder.base.words import sha256_of
from builder.engine.client import (
    DISK_SECONDS,
    EngineConflictError,
    EngineHTTPError,
    EngineMissingError,
    listed,
    objects,
    quoted,
    raw,
    request,
)

if TYPE_CHECKING:
    from builder.engine.client import Endpoint, EngineAnswer


# A file that caches facts about an engine between runs. It may be deleted at any time.

_HEAD = {"version": 1}


def load_cache(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the sections of the file; empty if the file is missing, damaged or has another version."""
    try:
        return records.read_file(path, dict[str, dict[str, Any]], _HEAD)
    except (OSError, records.RecordError):
        return {}


def store_cache(path: Path, section: str, content: dict[str, Any]) -> None:
    """Replaces one section; the other sections of the file are unchanged. If two processes write at once, the later one
    wins. If the folder cannot be written to, nothing happens, and the next run is slower."""
    files.write_state(path, json.dumps({**_HEAD, **load_cache(path), section: content}).encode())


# Splits image references, ``[HOST[:PORT]/]PATH[:TAG][@DIGEST]``.
# https://github.com/distribution/reference/blob/main/reference.go

DIGEST = "sha256:[0-9a-f]{64}"
"""The regular expression of a digest."""


_DAY = re.compile(r"(?<!\d)(20\d\d)(-?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])(?:\d\d)?(?!\d)")


def split_tag(name: str) -> tuple[str, str]:
    """Splits a reference into the repository and the digest, or else the tag, which is ``latest`` by default. A colon
    before a slash belongs to a port."""
    named, _, digest = name.partition("@")
    repository_name, colon, tag = named.rpartition(":")
    if not colon or "/" in tag:
        repository_name, tag = named, "latest"
    return repository_name, digest or tag


def repository(reference: str) -> str:
    return split_tag(reference)[0]


def day_of(text: str) -> str:
    """Returns the day in a tag as ``YYYY-MM-DD``; empty if the tag has no day. Tags such as ``nightly-20260920``,
    ``2026092001`` (a day and a count) and ``2026-09-20`` have a day."""
    for match in _DAY.finditer(text):
        with suppress(ValueError):
            return date(int(match[1]), int(match[3]), int(match[4])).isoformat()
    return ""


def split_day(reference: str) -> tuple[str, str]:
    """Splits ``NAME@DATE``; the date is ``YYYY-MM-DD`` or ``YYYYMMDD``, and empty if the text has no date."""
    name, at, written = reference.rpartition("@")
    day = day_of(written) if at and re.fullmatch(r"\d{4}-?\d\d-?\d\d", written) else ""
    return (name, day) if day else (reference, "")


def familiar(reference: str) -> str:
    """Returns the reference as engines show it: without ``docker.io/`` and ``library/``."""
    return re.sub(r"^(?:(?:index\.)?docker\.io/)?(?:library/)?", "", reference)


def with_registry(repository_name: str) -> str:
    """Returns the full name for containerd, with ``docker.io/library/`` if the repository names no registry."""
    first, slash, _ = repository_name.partition("/")
    if not slash:
        return f"docker.io/library/{repository_name}"
    has_registry = "." in first or ":" in first or first == "localhost"
    return repository_name if has_registry else f"docker.io/{repository_name}"


# An engine's id of an image depends on the image store. On the containerd store the id also changes with attestations
# and compression.

_SECTION = "fingerprints"
_LARGEST_CACHE = 5000
_LISTING_WAIT = 300.0
_AT_ONCE = 4  # requests
_PAUSES = (0.0, 0.02, 0.1, 0.2, 0.5, 1.0, 2.0)  # seconds between listings, while other processes remove many images
# The settings that determine how a container of the image runs. Labels do not affect a container.
_RUNTIME = ["Env", "Entrypoint", "Cmd", "WorkingDir", "User", "ExposedPorts", "Volumes", "StopSignal", "Shell"]
_RUNTIME += ["Healthcheck"]
# arm64 has only one variant. Some engines and tools write it, others leave it out.
_IMPLIED_VARIANTS = {"arm64": "v8"}


@dataclass(frozen=True)
class ImageDetails:
    """The engine's description of an image. ``id`` is the engine's own id, and differs between engines. ``size`` is in
    bytes, as the engine counts them (packed layers on the containerd store, unpacked layers on the classic store).
    ``created`` is RFC 3339. ``layers`` are the digests of the unpacked layers, lowest first. ``config`` is the runtime
    configuration without empty values. ``digests`` are its names by digest, even if no registry has them."""

    id: str
    platform: str
    size: int
    created: str
    labels: Mapping[str, str]
    layers: tuple[str, ...]
    config: Mapping[str, Any]
    tags: tuple[str, ...]
    digests: tuple[str, ...] = ()


def image_listing(endpoint: Endpoint, filters: Mapping[str, Sequence[str]] | None = None) -> list[EngineAnswer]:
    """The images that match the filters of the engine's API (ImageList), in the engine's format. On the containerd
    store, the request fails if an image is removed at the same time; it is then repeated."""
    query = {"filters": json.dumps(filters or {})}
    for pause in _PAUSES:
        try:
            return listed(endpoint, "/images/json", query=query, timeout=_LISTING_WAIT)
        except EngineHTTPError as error:
            if not isinstance(error, EngineMissingError) and "code = NotFound" not in error.explanation:
                raise
            time.sleep(pause)
    return listed(endpoint, "/images/json", query=query, timeout=_LISTING_WAIT)


def image_tags(endpoint: Endpoint, references: Iterable[str] = ()) -> dict[str, str]:
    """Returns every tag (``repository:tag``) with the engine's id of its image. ``references`` selects tags: a
    repository, ``repository:tag``, or a pattern (``vllm-node-*``). On the containerd store the request takes 1 ms per
    layer, which is seconds for hundreds of images; `cached_tags` asks only for changes."""
    patterns = list(references)
    images = image_listing(endpoint, {"reference": patterns} if patterns else {})
    return {tag: image["Id"] for image in images for tag in image["RepoTags"] or () if not tag.startswith("<none>")}


def disk_size(endpoint: Endpoint, name: str) -> int:
    """Returns the size of the image with this tag in bytes, as in ``docker image ls``; 0 if the tag does not exist."""
    return sum(image["Size"] for image in image_listing(endpoint, {"reference": [name]}))


def inspect_image(endpoint: Endpoint, reference: str) -> ImageDetails | None:
    """The image with this name or id; None if the engine has no such image, or the text is not a valid name."""
    try:
        return parse_details(request(endpoint, "GET", f"/images/{quoted(reference)}/json")) if reference else None
    except EngineMissingError:
        return None
    except EngineHTTPError as error:
        if "invalid reference format" in error.explanation:
            return None
        raise


def last_tagged(endpoint: Endpoint, name: str) -> str:
    """Returns the time when this image was last tagged (RFC 3339 UTC); empty if the engine does not record it."""
    description = request(endpoint, "GET", f"/images/{quoted(name)}/json")
    stamp = str((description.get("Metadata") or {}).get("LastTagTime") or "")
    return stamp if stamp.endswith("Z") and not stamp.startswith("0001") else ""


def parse_details(description: Mapping[str, Any]) -> ImageDetails:
    config = description.get("Config") or {}
    return ImageDetails(
        id=description["Id"],
        platform=_platform(description),
        size=description.get("Size") or 0,
        created=description.get("Created") or "",
        labels=config.get("Labels") or {},
        layers=tuple((description.get("RootFS") or {}).get("Layers") or ()),
        # Image stores differ in the empty values that they keep.
        config={key: config[key] for key in _RUNTIME if config.get(key)},
        tags=tuple(tag for tag in description.get("RepoTags") or () if not tag.startswith("<none>")),
        digests=tuple(name for name in description.get("RepoDigests") or () if not name.startswith("<none>")),
    )


def fingerprint(image: ImageDetails) -> str:
    """Returns the image's identity: ``sha256:…`` over its platform, unpacked layers and runtime configuration. It does
    not depend on the image store, compression, attestations, labels, tags or date."""
    content = {"platform": image.platform, "layers": image.layers, "config": image.config}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256_of(canonical.encode())


def fingerprints(endpoint: Endpoint, ids: Iterable[str], cache: Path) -> dict[str, str]:
    """Returns the fingerprint of each image id; ids without an image in the engine are left out. An id is a digest of
    the content, so its fingerprint never changes: only ids that are not in the file ``cache`` are inspected."""
    cached = load_cache(cache).get(_SECTION, {})
    requested = set(ids)
    result = {id_: cached[id_] for id_ in requested if isinstance(cached.get(id_), str)}
    if missing := requested - result.keys():
        result |= {id_: fingerprint(image) for id_, image in _inspected(endpoint, missing).items()}
        store_cache(cache, _SECTION, {**(cached if len(cached) < _LARGEST_CACHE else {}), **result})
    return result


def with_fingerprint(endpoint: Endpoint, content: str, cache: Path) -> str:
    """Returns the id of an image with the fingerprint ``content``, whatever its names are; empty if the engine has
    none. ``cache`` as for `fingerprints`."""
    contents = fingerprints(endpoint, {image["Id"] for image in image_listing(endpoint)}, cache)
    for id_, each in contents.items():
        # Anyone may have written the cache.
        if each == content and (details := inspect_image(endpoint, id_)) and fingerprint(details) == content:
            return id_
    return ""


def tag_image(endpoint: Endpoint, image: str, name: str) -> None:
    """Adds the tag ``name`` to ``image`` (tag, digest or id), and removes this tag from another image. Raises
    ImageStateError if ``image`` does not exist."""
    repository, new_tag = split_tag(name)
    try:
        request(endpoint, "POST", f"/images/{quoted(image)}/tag", query={"repo": repository, "tag": new_tag})
    except EngineMissingError:
        raise ImageStateError(f"the engine has no image {image}") from None


def remove_extra_tag(endpoint: Endpoint, name: str) -> bool:
    """Removes a tag from an image that has more tags; returns True on success. Keeps the last tag of an image."""
    image = inspect_image(endpoint, name)
    return image is not None and len(image.tags) > 1 and remove_image(endpoint, name)


def remove_image(endpoint: Endpoint, name: str) -> bool:
    """Removes a tag; with the last tag, removes the image. Returns False if no image has the tag. Raises ConflictError,
    and deletes nothing, if a container uses the image."""
    try:
        raw(endpoint, "DELETE", f"/images/{quoted(name)}", timeout=DISK_SECONDS)
    except EngineMissingError:
        return False
    except EngineConflictError as error:
        hint = "remove the container first, even if it is stopped: `docker ps -a` lists all containers"
        raise ConflictError(f"{name} is in use: {error.explanation}", hint=hint) from None
    return True


def _platform(description: Mapping[str, Any]) -> str:
    architecture, variant = description.get("Architecture") or "", description.get("Variant") or ""
    if _IMPLIED_VARIANTS.get(architecture) == variant:
        variant = ""
    return "/".join(filter(None, (description.get("Os") or "linux", architecture, variant)))


# The disk space of images in the engine, and the containers that use them. The engine stores each shared layer once.
# The identity of a layer is its own digest and the digests of all layers below it. The image's history has the size of
# the unpacked layer, on both image stores. The containerd store also keeps the packed layer; no request to the engine
# returns the size of the packed layer.

Layer = tuple[str, ...]
"""A layer: the digests of all layers up to this one, lowest first."""

# The instructions that change no file, as BuildKit and Docker's older builder write them into the history.
NO_LAYER = re.compile(
    r"(?:/bin/sh -c #\(nop\) +)?(?:ARG|CMD|ENTRYPOINT|ENV|EXPOSE|HEALTHCHECK|LABEL|MAINTAINER|ONBUILD|SHELL|STOPSIGNAL"
    r"|USER|VOLUME)\b"
)


def all_images(endpoint: Endpoint) -> tuple[ImageDetails, ...]:
    return tuple(_inspected(endpoint, {image["Id"] for image in image_listing(endpoint)}).values())


def _inspected(endpoint: Endpoint, ids: Iterable[str]) -> dict[str, ImageDetails]:
    """The images with these ids, by id. Images that were just removed are left out."""
    inspected = processes.in_parallel(lambda id_: (id_, inspect_image(endpoint, id_)), sorted(ids), _AT_ONCE)
    return {id_: image for id_, image in inspected if image}


def dangling(endpoint: Endpoint) -> frozenset[str]:
    return frozenset(image["Id"] for image in image_listing(endpoint, {"dangling": ["true"]}))


def layers(image: ImageDetails) -> tuple[Layer, ...]:
    return tuple(image.layers[:end] for end in range(1, len(image.layers) + 1))


def layer_sizes(endpoint: Endpoint, of_images: Iterable[ImageDetails]) -> dict[Layer, int]:
    """Returns the unpacked size in bytes of each layer of these images; 0 if the history does not contain it."""
    sizes: dict[Layer, int] = {}
    measured = processes.in_parallel(lambda image: (image, history(endpoint, image)), of_images, _AT_ONCE)
    for image, steps in measured:
        for layer, size in zip(layers(image), _sizes(steps, len(image.layers)), strict=True):
            sizes[layer] = size or sizes.get(layer, 0)
    return sizes


def history(endpoint: Endpoint, image: ImageDetails) -> Sequence[Mapping[str, object]]:
    """Returns the history of an image, oldest step first; empty if the image was removed after the listing."""
    with suppress(EngineMissingError):
        return listed(endpoint, f"/images/{quoted(image.id)}/history")[::-1]
    return []


def _sizes(steps: Sequence[Mapping[str, object]], count: int) -> list[int]:
    """Returns the sizes of ``count`` layers. The history lists steps, but does not say which steps made a layer."""
    not_empty = [entry for entry in steps if entry["Size"]]
    changing = [entry for entry in steps if not NO_LAYER.match(str(entry["CreatedBy"]))]
    for made in (not_empty, changing):
        if len(made) == count:
            return [int(str(entry["Size"])) for entry in made]
    return [0] * count


def containers_by_image(endpoint: Endpoint) -> dict[str, tuple[str, ...]]:
    from builder.engine import containers

    names: dict[str, tuple[str, ...]] = {}
    for container in containers.container_listing(endpoint):
        name = next(iter(container.get("Names") or ()), container["Id"][:12]).lstrip("/")
        names[container["ImageID"]] = (*names.get(container["ImageID"], ()), name)
    return names


# A cache of every tag and its image, updated from the engine's events.
#
# On the containerd image store the engine computes the size of each image for each listing, layer by layer. That takes
# 20 ms for an image of 17 layers, and 4 s for 200 such images (measured); no request is cheaper. The list of events
# takes 2 ms. The engine keeps the last 256 events in memory, and loses them when it restarts. The list is complete if
# it still contains an event of an earlier listing, the `EventMarker`. Changes that bypass the engine (root with `ctr`)
# cause no event: callers that must be certain use `inspect_image`.

EventMarker = tuple[int, str]
"""The identity of an event: its time (nanoseconds since 1970, by the engine's clock) and the id of its object."""

_SECOND = 1_000_000_000
_TAGS = "tags"
# Any other action on an image (pull, load, import, prune, a future action) may change names that it does not mention.
_HARMLESS = {"push", "save", "create", "mount", "unmount"}


def find_images(
    endpoint: Endpoint, repositories: Iterable[str], names: Iterable[str], path: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the engine's id for each tag of the repositories, and the fingerprints of the images ``names``
    (``repository:number``) that the engine has. The file ``path`` caches the tags of one set of ``repositories``."""
    requested = list(names)
    if not requested:
        return {}, {}
    ids = cached_tags(endpoint, repositories, path)
    existing = {name: ids[name] for name in requested if name in ids}
    contents = fingerprints(endpoint, existing.values(), path)
    return ids, {name: contents[id_] for name, id_ in existing.items() if id_ in contents}


def cached_tags(endpoint: Endpoint, references: Iterable[str], path: Path) -> dict[str, str]:
    """Returns the same as `image_tags`. The file ``path`` caches one set of references, only for an engine on this
    machine, since the clocks of two machines differ."""
    patterns = sorted(references)
    if not endpoint.host.startswith("unix://"):
        return image_tags(endpoint, patterns)
    cache = load_cache(path).get(_TAGS, {})
    marker = _marker(cache, endpoint, patterns)
    recent = list_since(endpoint, marker) if marker else None
    if recent is None:
        # The marker is taken before the listing, so that events during the listing are not lost.
        recent, changed = list_since(endpoint, None) or [], None
    else:
        changed = _changed_names(recent, cache["tags"])
    last = _marker_of(recent[-1]) if recent else marker
    if changed is None:
        current = image_tags(endpoint, patterns)
    else:
        current = {name: id_ for name, id_ in cache["tags"].items() if name not in changed}
        if names := [name for name in changed if _matches(name, patterns)]:
            current |= image_tags(endpoint, names)
    if last and (last != marker or changed is None):
        content = {"host": endpoint.host, "references": patterns, "nanoseconds": last[0], "actor": last[1]}
        store_cache(path, _TAGS, {**content, "tags": current})
    return current


def list_since(endpoint: Endpoint, since: EventMarker | None) -> list[dict[str, Any]] | None:
    """Lists the engine's events after ``since``, or all events, oldest first; None if ``since`` is no longer listed, or
    lies in the future because the clock was set back: the engine refuses a start after the end."""
    now = time.time_ns()
    if since and since[0] > now:
        return None

    def timestamp(nanoseconds: int) -> str:
        return f"{nanoseconds // _SECOND}.{nanoseconds % _SECOND:09d}"

    # If the end is in the past, the engine returns its list and does not wait for more events.
    query = {"since": timestamp(since[0] if since else 0), "until": timestamp(now)}
    events = list(objects([raw(endpoint, "GET", "/events", query=query, timeout=10)]))
    markers = [_marker_of(event) for event in events]
    return events if since is None else events[markers.index(since) + 1 :] if since in markers else None


def _marker_of(event: Mapping[str, Any]) -> EventMarker:
    return int(event.get("timeNano") or 0), str((event.get("Actor") or {}).get("ID", ""))


def _changed_names(recent: Iterable[Mapping[str, Any]], cached: Mapping[str, str]) -> set[str] | None:
    """Returns the names whose image may have changed; None if any image may have."""
    names: set[str] = set()
    for event in recent:
        kind, action = event.get("Type"), event.get("Action")
        if (kind != "image" and (kind, action) != ("container", "commit")) or action in _HARMLESS:
            continue
        if action not in {"tag", "untag", "delete"}:
            return None
        actor = event.get("Actor") or {}
        names.add(str((actor.get("Attributes") or {}).get("name", "")))
        if action != "tag":
            # For an untagged image, the classic image store gives the id instead of the name.
            names.update(name for name, id_ in cached.items() if id_ == actor.get("ID"))
    return names


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """True if the engine would list this tag for these references. A reference matches a whole tag or a repository."""
    if "@" in name or name.startswith("sha256:"):
        return False
    repository = split_tag(name)[0]
    return not patterns or any(
        fnmatchcase(candidate, pattern)
        for pattern in patterns
        for candidate in (name, repository)
        if candidate.count("/") == pattern.count("/")
    )


def _marker(cache: dict[str, Any], endpoint: Endpoint, patterns: Sequence[str]) -> EventMarker | None:
    """Returns the marker of the cache; None if the cache is for another engine or other references."""
    if cache.get("host") != endpoint.host or cache.get("references") != patterns:
        return None
    nanoseconds, actor = cache.get("nanoseconds"), cache.get("actor")
    if not isinstance(nanoseconds, int) or not isinstance(actor, str) or not isinstance(cache.get("tags"), dict):
        return None
    return nanoseconds, actor
