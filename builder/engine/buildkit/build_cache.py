"""BuildKit's build cache: layers and cache mounts of earlier builds.

A record has no labels, but names the step of a Dockerfile that it came from.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine.client.api import request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.engine.client.endpoint import Endpoint

_WAIT = 600.0
_PAUSES = (0.05, 0.2, 0.5, 1.0, 1.0)  # seconds between listings
_STEP = re.compile(
    r'(?:mount / from exec /bin/sh -c |cached mount \S+ from exec /bin/sh -c |\[[^\]]*\] )(.*?)(?: with id "[^"]*")?',
    re.DOTALL,
)


@dataclass(frozen=True)
class CacheRecord:
    """A record of the build cache.

    ``step`` is the command or instruction that it came from, empty for any other origin; ``size`` is in bytes;
    ``shared`` marks a layer that an image uses as well.
    """

    id: str
    step: str
    size: int
    shared: bool
    in_use: bool


def records(endpoint: Endpoint) -> tuple[CacheRecord, ...]:
    """Returns all records of the engine's own BuildKit."""
    usage = request(endpoint, "GET", "/system/df", query={"type": "build-cache"}, timeout=_WAIT)
    return tuple(
        CacheRecord(
            id=record["ID"],
            step=_step(record.get("Description") or ""),
            size=record.get("Size") or 0,
            shared=bool(record.get("Shared")),
            in_use=bool(record.get("InUse")),
        )
        for record in usage.get("BuildCache") or ()
    )


def settled_records(endpoint: Endpoint) -> tuple[CacheRecord, ...]:
    """Returns all records once two listings in a row mark the same ones as shared. For a moment after an image was
    removed the engine marks some or none (seen with 28.5); after some seconds the last listing counts."""
    before: frozenset[str] = frozenset()
    for pause in _PAUSES:
        listing = records(endpoint)
        marked = frozenset(record.id for record in listing if record.shared)
        if marked and marked == before:
            return listing
        before = marked
        time.sleep(pause)
    return records(endpoint)


def remove(endpoint: Endpoint, ids: Iterable[str]) -> int:
    """Removes these records, but for those that others are based on; returns the bytes that BuildKit freed."""
    selected = sorted(ids)
    if not selected:
        return 0
    # The engine accepts one value for a filter, and takes this one as a regular expression.
    filters = json.dumps({"id": [f"^({'|'.join(map(re.escape, selected))})$"]})
    result = request(endpoint, "POST", "/build/prune", query={"all": 1, "filters": filters}, timeout=_WAIT)
    return int(result.get("SpaceReclaimed") or 0)


def _step(description: str) -> str:
    match = _STEP.fullmatch(description)
    return match[1].strip() if match else ""
