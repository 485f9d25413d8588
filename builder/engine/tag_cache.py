"""A cache of every tag and its image, kept up to date from the engine's events.

On the containerd image store the engine computes the size of each image for each listing, layer by layer: measured
20 ms an image of 17 layers, 4 s for 200 of them, and there is no cheaper request. Its record of events takes 2 ms. So
the tags are cached, and updated from the events of images since.

Changes made past the engine (with `ctr`, by root) are not seen. Callers that must be certain use `images.inspect`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from builder.engine import cache_file, events, images
from builder.engine.reference import split_tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.events import EngineEvent, EventMarker

_SECTION = "tags"
# Every other action on an image (pull, load, import, prune, a new one) may have changed names it does not mention.
_HARMLESS = {"push", "save", "create", "mount", "unmount"}
_NAMING = {"tag", "untag", "delete"}


@dataclass(frozen=True)
class TaggedImages:
    """The images behind tags: ``ids`` has the engine's id for each tag of the repositories, ``fingerprints`` the
    content fingerprint of each requested image that exists, by its name."""

    ids: dict[str, str]
    fingerprints: dict[str, str]


def find(endpoint: Endpoint, repositories: Iterable[str], names: Iterable[str], path: Path) -> TaggedImages:
    """Returns the images ``names`` (``repository:number``) that the engine has, cached in the file ``path``.

    ``repositories`` are best the same each time: the cache of the tags is for one set of them. Raises EngineError where
    no engine answers.
    """
    requested = list(names)
    if not requested:
        return TaggedImages({}, {})
    ids = tags(endpoint, repositories, path)
    existing = {name: ids[name] for name in requested if name in ids}
    fingerprints = images.fingerprints(endpoint, existing.values(), path)
    return TaggedImages(ids, {name: fingerprints[id_] for name, id_ in existing.items() if id_ in fingerprints})


def tags(endpoint: Endpoint, references: Iterable[str], path: Path) -> dict[str, str]:
    """Returns the same as `images.tags`, cached in the file ``path`` for one set of references.

    The cache is only for an engine on this machine, since the clocks of two machines differ.
    """
    patterns = sorted(references)
    if not endpoint.host.startswith("unix://"):
        return images.tags(endpoint, patterns)
    cache = cache_file.load(path).get(_SECTION, {})
    marker = _marker(cache, endpoint, patterns)
    recent = events.list_since(endpoint, marker) if marker else None
    if marker is None or recent is None:
        # The marker is taken before the listing, so that events during the listing are not lost.
        last = events.latest(events.list_since(endpoint, None) or [])
        return _store(path, endpoint, patterns, last, images.tags(endpoint, patterns))
    last = events.latest(recent, marker)
    current: dict[str, str] = cache["tags"]
    changed = _changed_names(recent, current)
    if changed is None:
        current = images.tags(endpoint, patterns)
    elif names := [name for name in changed if _matches(name, patterns)]:
        current = {name: id_ for name, id_ in current.items() if name not in changed} | images.tags(endpoint, names)
    elif last == marker:
        return current
    return _store(path, endpoint, patterns, last, current)


def _changed_names(recent: Sequence[EngineEvent], cached: dict[str, str]) -> set[str] | None:
    """Returns the names whose image may have changed; None where any may have."""
    names: set[str] = set()
    for event in recent:
        if event.kind == "container" and event.action != "commit":
            continue
        if event.kind != "image" and event.kind != "container":
            continue
        if event.action in _HARMLESS:
            continue
        if event.action not in _NAMING:
            return None
        names.add(event.name)
        if event.action != "tag":
            # The classic image store gives the image's id as the name of what was untagged.
            names.update(name for name, id_ in cached.items() if id_ == event.id)
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
    return events.EventMarker(nanoseconds, actor)


def _store(
    path: Path, endpoint: Endpoint, patterns: Sequence[str], marker: EventMarker | None, current: dict[str, str]
) -> dict[str, str]:
    if marker:
        content = {
            "host": endpoint.host,
            "references": list(patterns),
            "nanoseconds": marker.nanoseconds,
            "actor": marker.id,
            "tags": current,
        }
        cache_file.store(path, _SECTION, content)
    return current
