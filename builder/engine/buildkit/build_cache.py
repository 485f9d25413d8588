"""What BuildKit keeps from earlier builds: layers and the files of cache mounts.

A record of it carries no labels, but says which step of a Dockerfile it came from.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine.client.api import request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.engine.client.endpoint import Endpoint

_WAIT = 600.0
_STEP = re.compile(
    r'(?:mount / from exec /bin/sh -c |cached mount \S+ from exec /bin/sh -c |\[[^\]]*\] )(.*?)(?: with id "[^"]*")?',
    re.DOTALL,
)


@dataclass(frozen=True)
class CacheRecord:
    """One record: ``step`` is the command or instruction that it came from, empty where it is of something else,
    ``size`` in bytes. ``shared`` is a layer that an image holds as well."""

    id: str
    step: str
    size: int
    shared: bool
    in_use: bool


def records(endpoint: Endpoint) -> tuple[CacheRecord, ...]:
    """Everything in the cache of the engine's own BuildKit."""
    said = request(endpoint, "GET", "/system/df", query={"type": "build-cache"}, timeout=_WAIT)
    return tuple(
        CacheRecord(
            id=found["ID"],
            step=_step(found.get("Description") or ""),
            size=found.get("Size") or 0,
            shared=bool(found.get("Shared")),
            in_use=bool(found.get("InUse")),
        )
        for found in said.get("BuildCache") or ()
    )


def remove(endpoint: Endpoint, ids: Iterable[str]) -> int:
    """Removes these records, but for those that others stand on; returns the bytes that BuildKit says it freed."""
    wanted = sorted(ids)
    if not wanted:
        return 0
    # The engine takes one value for a filter, and reads this one as a pattern.
    filters = json.dumps({"id": [f"^({'|'.join(map(re.escape, wanted))})$"]})
    said = request(endpoint, "POST", "/build/prune", query={"all": 1, "filters": filters}, timeout=_WAIT)
    return int(said.get("SpaceReclaimed") or 0)


def _step(description: str) -> str:
    match = _STEP.fullmatch(description)
    return match[1].strip() if match else ""
