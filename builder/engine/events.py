"""The engine's own record of recent events.

The engine keeps the last 256 events in memory and loses them when it restarts. That the record reaches back far enough
is proved by an event that was seen before and is still in it, the `EventMarker`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.engine.client import json_lines
from builder.engine.client.api import raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.engine.client.endpoint import Endpoint

_SECOND = 1_000_000_000


@dataclass(frozen=True)
class EventMarker:
    """The identity of an event: its time, in nanoseconds since 1970 by the engine's clock, and the id of its object."""

    nanoseconds: int
    id: str


@dataclass(frozen=True)
class EngineEvent:
    """One event: ``action`` on the object with this ``id`` and ``name``, whose ``kind`` is image, container …"""

    marker: EventMarker
    kind: str
    action: str
    name: str

    @property
    def id(self) -> str:
        """The engine's id of the object."""
        return self.marker.id


def list_since(endpoint: Endpoint, since: EventMarker | None) -> list[EngineEvent] | None:
    """Lists the events after ``since``, oldest first; None where the record no longer reaches back to it.

    Without ``since``: all events in the record.
    """
    events = _record(endpoint, since.nanoseconds if since else 0)
    if since is None:
        return events
    markers = [event.marker for event in events]
    return events[markers.index(since) + 1 :] if since in markers else None


def latest(events: Sequence[EngineEvent], before: EventMarker | None = None) -> EventMarker | None:
    """Returns the marker of the last of these events; ``before`` where there are none."""
    return events[-1].marker if events else before


def _record(endpoint: Endpoint, nanoseconds: int) -> list[EngineEvent]:
    # With an end in the past the engine returns its record and does not wait for more.
    query = {"since": _timestamp(nanoseconds), "until": _timestamp(time.time_ns())}
    return [_event(value) for value in json_lines.objects([raw(endpoint, "GET", "/events", query=query, timeout=10)])]


def _event(value: dict[str, Any]) -> EngineEvent:
    actor = value.get("Actor") or {}
    return EngineEvent(
        marker=EventMarker(int(value.get("timeNano") or 0), str(actor.get("ID", ""))),
        kind=str(value.get("Type", "")),
        action=str(value.get("Action", "")),
        name=str((actor.get("Attributes") or {}).get("name", "")),
    )


def _timestamp(nanoseconds: int) -> str:
    return f"{nanoseconds // _SECOND}.{nanoseconds % _SECOND:09d}"
