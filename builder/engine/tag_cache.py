"""A cache of every tag and its image, kept up to date from the engine's events.

On the containerd image store the engine computes the size of each image for each listing, layer by layer: measured 20
ms an image of 17 layers, 4 s for 200 of them, and there is no cheaper request. Its record of events takes 2 ms. The
engine keeps the last 256 events in memory and loses them when it restarts. That the record reaches back far enough is
proved by an event that was seen before and is still in it, the `EventMarker`. Changes made past the engine (with `ctr`,
by root) are not seen: callers that must be certain use `images.inspect_image`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from builder.engine import client, images
from builder.engine.client import raw
from builder.engine.images import split_tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.engine.client import Endpoint


EventMarker = tuple[int, str]
"""The identity of an event: its time, in nanoseconds since 1970 by the engine's clock, and the id of its object."""

_SECOND = 1_000_000_000
_SECTION = "tags"
# Every other action on an image (pull, load, import, prune, a new one) may have changed names it does not mention.
_HARMLESS = {"push", "save", "create", "mount", "unmount"}


@dataclass(frozen=True)
class TaggedImages:
    """The images behind tags: ``ids`` has the engine's id for each tag of the repositories, ``fingerprints`` the
    content fingerprint of each requested image that exists, by its name."""

    ids: dict[str, str]
    fingerprints: dict[str, str]


def find_images(endpoint: Endpoint, repositories: Iterable[str], names: Iterable[str], path: Path) -> TaggedImages:
    """Returns the images ``names`` (``repository:number``) that the engine has. The file ``path`` caches the tags of
    one set of ``repositories``. Raises EngineError if no engine answers."""
    requested = list(names)
    if not requested:
        return TaggedImages({}, {})
    ids = cached_tags(endpoint, repositories, path)
    existing = {name: ids[name] for name in requested if name in ids}
    fingerprints = images.fingerprints(endpoint, existing.values(), path)
    return TaggedImages(ids, {name: fingerprints[id_] for name, id_ in existing.items() if id_ in fingerprints})


def cached_tags(endpoint: Endpoint, references: Iterable[str], path: Path) -> dict[str, str]:
    """Returns the same as `images.image_tags`, cached in the file ``path`` for one set of references. The cache is only
    for an engine on this machine, since the clocks of two machines differ."""
    patterns = sorted(references)
    if not endpoint.host.startswith("unix://"):
        return images.image_tags(endpoint, patterns)
    cache = images.load_cache(path).get(_SECTION, {})
    marker = _marker(cache, endpoint, patterns)
    recent = list_since(endpoint, marker) if marker else None
    if recent is None:
        # The marker is taken before the listing, so that events during the listing are not lost.
        recent, changed = list_since(endpoint, None) or [], None
    else:
        changed = _changed_names(recent, cache["tags"])
    last = _marker_of(recent[-1]) if recent else marker
    if changed is None:
        current = images.image_tags(endpoint, patterns)
    else:
        current = {name: id_ for name, id_ in cache["tags"].items() if name not in changed}
        if names := [name for name in changed if _matches(name, patterns)]:
            current |= images.image_tags(endpoint, names)
    if last and (last != marker or changed is None):
        content = {"host": endpoint.host, "references": patterns, "nanoseconds": last[0], "actor": last[1]}
        images.store_cache(path, _SECTION, {**content, "tags": current})
    return current


def list_since(endpoint: Endpoint, since: EventMarker | None) -> list[dict[str, Any]] | None:
    """Lists the engine's events after ``since``, or all, oldest first; None if the record does not reach back to it."""

    def timestamp(nanoseconds: int) -> str:
        return f"{nanoseconds // _SECOND}.{nanoseconds % _SECOND:09d}"

    # With an end in the past the engine returns its record and does not wait for more.
    query = {"since": timestamp(since[0] if since else 0), "until": timestamp(time.time_ns())}
    events = list(client.objects([raw(endpoint, "GET", "/events", query=query, timeout=10)]))
    markers = [_marker_of(event) for event in events]
    return events if since is None else events[markers.index(since) + 1 :] if since in markers else None


def _marker_of(event: Mapping[str, Any]) -> EventMarker:
    return int(event.get("timeNano") or 0), str((event.get("Actor") or {}).get("ID", ""))


def _changed_names(recent: Iterable[Mapping[str, Any]], cached: Mapping[str, str]) -> set[str] | None:
    """Returns the names whose image may have changed; None if any may have."""
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
            # The classic image store gives the image's id as the name of what was untagged.
            names.update(name for name, id_ in cached.items() if id_ == actor.get("ID"))
    return names


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """True if the engine would list this tag for these references: each matches a whole tag or a repository."""
    if name.startswith("sha256:"):
        return False
    repository = split_tag(name)[0]
    return not patterns or any(
        fnmatchcase(candidate, pattern)
        for pattern in patterns
        for candidate in (name, repository)
        if candidate.count("/") == pattern.count("/")
    )


def _marker(cache: dict[str, Any], endpoint: Endpoint, patterns: Sequence[str]) -> EventMarker | None:
    """Returns the marker of the cache; None where it is about another engine or other references."""
    if cache.get("host") != endpoint.host or cache.get("references") != patterns:
        return None
    nanoseconds, actor = cache.get("nanoseconds"), cache.get("actor")
    if not isinstance(nanoseconds, int) or not isinstance(actor, str) or not isinstance(cache.get("tags"), dict):
        return None
    return nanoseconds, actor
