"""Every tag and its image, without asking the engine for every image again.

On the containerd image store the engine works out the size of each image for each listing, layer by layer: measured
20 ms an image of 17 layers, 4 s for 200 of them, and there is no cheaper question. Its record of events is 2 ms away.
So the tags are remembered, and brought up to date with what happened to images since.

Not seen are changes made past the engine (with `ctr`, by root). What must be certain is asked with `images.inspect`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from builder.engine import cache_file, events, images

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.events import EngineEvent, EventMarker

_SECTION = "tags"
# Every other action on an image (pull, load, import, prune, a new one) may have changed names it does not mention.
_HARMLESS = {"push", "save", "create", "mount", "unmount"}
_NAMING = {"tag", "untag", "delete"}


def tags(endpoint: Endpoint, references: Iterable[str], path: Path) -> dict[str, str]:
    """As `images.tags`, remembered in the file ``path``; ask for the same references each time.

    Only for an engine on this machine: the clocks of two machines differ.
    """
    wanted = sorted(references)
    if not endpoint.host.startswith("unix://"):
        return images.tags(endpoint, wanted)
    known = cache_file.load(path).get(_SECTION, {})
    marker = _marker(known, endpoint, wanted)
    recent = events.list_since(endpoint, marker) if marker else None
    if marker is None or recent is None:
        # The marker is taken before the listing: what happens during the listing is then not lost.
        last = events.latest(events.list_since(endpoint, None) or [])
        return _keep(path, endpoint, wanted, last, images.tags(endpoint, wanted))
    last = events.latest(recent, marker)
    found: dict[str, str] = known["tags"]
    touched = _touched(recent, found)
    if touched is None:
        found = images.tags(endpoint, wanted)
    elif names := [name for name in touched if _matches(name, wanted)]:
        found = {name: image for name, image in found.items() if name not in touched} | images.tags(endpoint, names)
    elif last == marker:
        return found
    return _keep(path, endpoint, wanted, last, found)


def _touched(recent: Sequence[EngineEvent], known: dict[str, str]) -> set[str] | None:
    """The names whose image may have changed; None where it may be any."""
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
            names.update(name for name, image in known.items() if image == event.id)
    return names


def _matches(name: str, wanted: Sequence[str]) -> bool:
    """Whether the engine would list this tag for these references: each matches a whole tag or a repository."""
    if name.startswith("sha256:"):
        return False
    repository = images.split(name)[0]
    return not wanted or any(
        fnmatchcase(candidate, pattern)
        for pattern in wanted
        for candidate in (name, repository)
        if candidate.count("/") == pattern.count("/")
    )


def _marker(known: dict[str, Any], endpoint: Endpoint, wanted: Sequence[str]) -> EventMarker | None:
    """The marker of what is remembered, where it is about this engine and these references."""
    if known.get("host") != endpoint.host or known.get("references") != wanted:
        return None
    nanoseconds, actor = known.get("nanoseconds"), known.get("actor")
    if not isinstance(nanoseconds, int) or not isinstance(actor, str) or not isinstance(known.get("tags"), dict):
        return None
    return events.EventMarker(nanoseconds, actor)


def _keep(
    path: Path, endpoint: Endpoint, wanted: Sequence[str], marker: EventMarker | None, found: dict[str, str]
) -> dict[str, str]:
    if marker:
        content = {
            "host": endpoint.host,
            "references": list(wanted),
            "nanoseconds": marker.nanoseconds,
            "actor": marker.id,
            "tags": found,
        }
        cache_file.store(path, _SECTION, content)
    return found
