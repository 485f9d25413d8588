"""What happened in the engine lately: its own record of events.

The engine keeps the last 256 events in memory and forgets them when it restarts. Whether the record reaches back far
enough is therefore to be proved: by an event that was seen before and is still in it, the `EventMarker`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.engine.client.api import raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.engine.client.endpoint import Endpoint

_SECOND = 1_000_000_000


@dataclass(frozen=True)
class EventMarker:
    """One event: when it happened, in nanoseconds since 1970 by the engine's clock, and to what."""

    nanoseconds: int
    id: str


@dataclass(frozen=True)
class EngineEvent:
    """One event. ``kind`` is image, container …; ``id`` and ``name`` are of the thing that ``action`` happened to."""

    marker: EventMarker
    kind: str
    action: str
    name: str

    @property
    def id(self) -> str:
        """The engine's id of the thing."""
        return self.marker.id


def list_since(endpoint: Endpoint, since: EventMarker | None) -> list[EngineEvent] | None:
    """The events after ``since``, oldest first; None where the record no longer reaches back to it.

    Without ``since``: all that the engine still knows.
    """
    found = _record(endpoint, since.nanoseconds if since else 0)
    if since is None:
        return found
    markers = [event.marker for event in found]
    return found[markers.index(since) + 1 :] if since in markers else None


def latest(events: Sequence[EngineEvent], before: EventMarker | None = None) -> EventMarker | None:
    """The marker of the last of these events; ``before`` where there are none."""
    return events[-1].marker if events else before


def _record(endpoint: Endpoint, nanoseconds: int) -> list[EngineEvent]:
    # With an end that is past already the engine answers with its record and does not wait for more.
    query = {"since": _timestamp(nanoseconds), "until": _timestamp(time.time_ns())}
    lines = raw(endpoint, "GET", "/events", query=query, timeout=10).splitlines()
    return [_event(json.loads(line)) for line in lines if line.strip()]


def _event(said: dict[str, Any]) -> EngineEvent:
    actor = said.get("Actor") or {}
    return EngineEvent(
        marker=EventMarker(int(said.get("timeNano") or 0), str(actor.get("ID", ""))),
        kind=str(said.get("Type", "")),
        action=str(said.get("Action", "")),
        name=str((actor.get("Attributes") or {}).get("name", "")),
    )


def _timestamp(nanoseconds: int) -> str:
    return f"{nanoseconds // _SECOND}.{nanoseconds % _SECOND:09d}"
