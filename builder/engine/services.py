"""Long-lived containers: what serves a model. Found by name or by label, started, looked into, stopped."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from builder.engine import containers
from builder.engine.client import stream_demux
from builder.engine.client.api import quoted, request, stream
from builder.engine.client.errors import EngineHTTPError
from builder.errors import ConflictError, ImageStateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint

# How long the engine may take beyond the time that a container has to end, to kill it and to say so.
_STOP_SLACK = 60
_RECONNECT_SECONDS = 0.5


@dataclass(frozen=True)
class Service:
    """A container as it is now. ``image`` is the name it was created from, ``content`` the engine's id of what that
    was then. ``status`` is the engine's word (created, running, restarting, exited …), ``health`` too (starting,
    healthy, unhealthy), and empty without a health check. ``started`` is RFC 3339; ``restarts`` counts those that the
    engine made by itself; ``exit_code`` is that of the last end."""

    id: str
    name: str
    image: str
    content: str
    labels: Mapping[str, str]
    status: str
    health: str
    started: str
    restarts: int
    exit_code: int

    @property
    def is_up(self) -> bool:
        """Whether it runs, or will by itself."""
        return self.status in {"running", "restarting"}


@dataclass(frozen=True)
class LogLine:
    """A line of a log, with when it was written: RFC 3339 with nanoseconds, by the engine's clock."""

    written: str
    text: str


def find(endpoint: Endpoint, name: str) -> Service | None:
    """The container of this name or id; None where there is none."""
    try:
        found = _service(request(endpoint, "GET", f"/containers/{quoted(name)}/json"))
    except EngineHTTPError as error:
        if error.is_not_found:
            return None
        raise
    # The engine also takes the beginning of an id.
    return found if name in {found.name, found.id} else None


def labelled(endpoint: Endpoint, label: str, timeout: float = 60) -> tuple[Service, ...]:
    """Every container with this label (``key`` or ``key=value``), running or not, by name."""
    filters = json.dumps({"label": [label]})
    said = request(endpoint, "GET", "/containers/json", query={"all": 1, "filters": filters}, timeout=timeout) or []
    # One may go while the others are looked at.
    found = [service for one in said if (service := find(endpoint, one["Id"]))]
    return tuple(sorted(found, key=lambda service: service.name))


def create(endpoint: Endpoint, name: str, body: Mapping[str, Any]) -> Service:
    """A container that is not started yet; ``body`` is as the engine's API takes it.

    Raises ImageStateError for a missing image, ConflictError where another container has the name.
    """
    try:
        made = request(endpoint, "POST", "/containers/create", query={"name": name}, body=body)["Id"]
    except EngineHTTPError as error:
        if error.is_not_found:
            raise ImageStateError(f"the engine has no image {body['Image']}") from None
        if error.is_conflict:
            raise ConflictError(
                f"another container is called {name}",
                hint=f"`docker rm -f {name}` removes it, or give the recipe another name",
            ) from None
        raise
    return _service(request(endpoint, "GET", f"/containers/{made}/json"))


def start(endpoint: Endpoint, container: str) -> None:
    """Starts it. Raises EngineHTTPError where the engine cannot: no such program, no such device, a port in use."""
    request(endpoint, "POST", f"/containers/{container}/start", timeout=300)


def stop(endpoint: Endpoint, container: str, seconds: int) -> Service | None:
    """Asks it to end, by its own stop signal, kills it after ``seconds``, and removes it; returns how it stood when it
    had ended, and None where it was gone already."""
    try:
        query = {"t": seconds}
        request(endpoint, "POST", f"/containers/{container}/stop", query=query, timeout=seconds + _STOP_SLACK)
    except EngineHTTPError as error:
        if not error.is_not_found:
            raise
    ended = find(endpoint, container)
    containers.remove(endpoint, container)
    return ended


def log(endpoint: Endpoint, container: str, *, after: str = "", tail: int | None = None) -> tuple[LogLine, ...]:
    """The lines written so far: those past the time ``after``, the last ``tail`` of them where a number is given."""
    return tuple(_lines(endpoint, container, {"follow": 0}, after, tail))


def follow(endpoint: Endpoint, container: str, *, tail: int | None = None) -> Iterator[LogLine]:
    """The log with its last ``tail`` lines, and then each line as it is written, across restarts, until the container
    is stopped or removed."""
    after = ""
    while True:
        for line in _lines(endpoint, container, {"follow": 1}, after, None if after else tail):
            after = line.written
            yield line
        # The engine ends the stream with every end of the container's process.
        now = find(endpoint, container)
        if now is None or not now.is_up:
            return
        after = after or now.started
        time.sleep(_RECONNECT_SECONDS)


def _lines(
    endpoint: Endpoint, container: str, query: Mapping[str, str | int], after: str, tail: int | None
) -> Iterator[LogLine]:
    asked = {**query, "stdout": 1, "stderr": 1, "timestamps": 1, "tail": "all" if tail is None else tail}
    if after:
        asked["since"] = _timestamp(after)
    for content in stream_demux.payloads(stream(endpoint, f"/containers/{container}/logs", query=asked)):
        written, _, text = content.decode(errors="replace").partition(" ")
        # `since` takes the moment itself in; two lines never have the same one.
        if written != after:
            yield LogLine(written, text.rstrip("\r\n"))


def _timestamp(written: str) -> str:
    """RFC 3339 in UTC as the engine takes a time: seconds since 1970, with its nanoseconds, which `datetime` drops."""
    seconds, _, nanoseconds = written.removesuffix("Z").partition(".")
    return f"{int(datetime.fromisoformat(f'{seconds}+00:00').timestamp())}.{nanoseconds or 0}"


def _service(said: Mapping[str, Any]) -> Service:
    state = said["State"]
    return Service(
        id=said["Id"],
        name=said["Name"].removeprefix("/"),
        image=said["Config"]["Image"],
        content=said["Image"],
        labels=said["Config"].get("Labels") or {},
        status=state["Status"],
        health=(state.get("Health") or {}).get("Status", ""),
        started=state.get("StartedAt") or "",
        restarts=said.get("RestartCount") or 0,
        exit_code=state.get("ExitCode") or 0,
    )
