"""Long-lived containers, which serve models: found by name or label, started, read and stopped."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from builder.engine import containers
from builder.engine.client import stream_demux
from builder.engine.client.api import DISK_SECONDS, quoted, request, stream
from builder.engine.client.errors import EngineHTTPError
from builder.errors import ConflictError, ImageStateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint

# Time for the engine to kill a container and to respond, beyond the time that the container has to end.
_STOP_SLACK = 60
_RECONNECT_SECONDS = 0.5


@dataclass(frozen=True)
class Service:
    """The present state of a container.

    ``image`` is the name it was created from, ``image_id`` the engine's id of the image of that name at the time.
    ``status`` is the engine's word (created, running, restarting, exited …), so is ``health`` (starting, healthy,
    unhealthy), which is empty without a health check. ``started`` is RFC 3339; ``restarts`` counts the engine's own
    restarts; ``exit_code`` is that of the last end.
    """

    id: str
    name: str
    image: str
    image_id: str
    labels: Mapping[str, str]
    status: str
    health: str
    started: str
    restarts: int
    exit_code: int

    @property
    def is_up(self) -> bool:
        """True if it runs, or is about to be restarted by the engine."""
        return self.status in {"running", "restarting"}


@dataclass(frozen=True)
class ContainerProcess:
    """The process that a container was created for: its arguments and its environment, which may hold secrets."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(frozen=True)
class LogLine:
    """A line of a container's log; ``written`` is RFC 3339 with nanoseconds, by the engine's clock."""

    written: str
    text: str


def find(endpoint: Endpoint, name: str) -> Service | None:
    """Returns the container of this name or id; None where there is none."""
    try:
        service = _service(request(endpoint, "GET", f"/containers/{quoted(name)}/json"))
    except EngineHTTPError as error:
        if error.is_not_found:
            return None
        raise
    # The engine also accepts the beginning of an id.
    return service if name in {service.name, service.id} else None


def process(endpoint: Endpoint, container: str) -> ContainerProcess:
    """Returns the process of a container. Raises EngineHTTPError where there is no such container."""
    configured = request(endpoint, "GET", f"/containers/{quoted(container)}/json")["Config"]
    argv = (*(configured.get("Entrypoint") or ()), *(configured.get("Cmd") or ()))
    variables = (variable.partition("=") for variable in configured.get("Env") or ())
    return ContainerProcess(argv, {name: value for name, _, value in variables})


def labelled(endpoint: Endpoint, label: str, timeout: float = 60) -> tuple[Service, ...]:
    """Returns every container with this label (``key`` or ``key=value``), running or not, by name."""
    listing = containers.listing(endpoint, label, timeout)
    # A container may be removed while the others are inspected.
    services = [service for container in listing if (service := find(endpoint, container["Id"]))]
    return tuple(sorted(services, key=lambda service: service.name))


def create(endpoint: Endpoint, name: str, body: Mapping[str, Any]) -> Service:
    """Creates a container without starting it; ``body`` is the request body of the engine's API.

    Raises ImageStateError for a missing image, ConflictError where another container has the name.
    """
    try:
        container_id = request(
            endpoint, "POST", "/containers/create", query={"name": name}, body=body, timeout=DISK_SECONDS
        )["Id"]
    except EngineHTTPError as error:
        if error.is_not_found:
            raise ImageStateError(f"the engine has no image {body['Image']}") from None
        if error.is_conflict:
            raise ConflictError(
                f"another container is called {name}",
                hint=f"`docker rm -f {name}` removes it, or give the recipe another name",
            ) from None
        raise
    return _service(request(endpoint, "GET", f"/containers/{container_id}/json"))


def start(endpoint: Endpoint, container: str) -> None:
    """Starts a container. Raises EngineHTTPError where the engine cannot: no such program or device, a port in use."""
    request(endpoint, "POST", f"/containers/{container}/start", timeout=DISK_SECONDS)


def stop(endpoint: Endpoint, container: str, seconds: int) -> Service | None:
    """Stops a container by its own stop signal, kills it after ``seconds``, and removes it.

    Returns its state at the end; None where it did not exist any more.
    """
    _stop(endpoint, container, seconds)
    ended = find(endpoint, container)
    containers.remove(endpoint, container)
    return ended


def halt(endpoint: Endpoint, container: str, seconds: int) -> None:
    """Stops a container as `stop` does, and keeps it: it stays stopped until the engine itself starts anew, which
    starts those of this restart policy (https://docs.docker.com/engine/containers/start-containers-automatically/)."""
    path, policy = f"/containers/{container}/update", {"RestartPolicy": {"Name": "always"}}
    try:
        request(endpoint, "POST", path, body=policy)
    except EngineHTTPError as error:
        if not error.is_not_found:
            raise
    _stop(endpoint, container, seconds)


def _stop(endpoint: Endpoint, container: str, seconds: int) -> None:
    try:
        query = {"t": seconds}
        request(endpoint, "POST", f"/containers/{container}/stop", query=query, timeout=seconds + _STOP_SLACK)
    except EngineHTTPError as error:
        if not error.is_not_found:
            raise


def log(endpoint: Endpoint, container: str, *, after: str = "", tail: int | None = None) -> tuple[LogLine, ...]:
    """Returns the log so far: the lines after the time ``after``, and only the last ``tail`` of them if given."""
    return tuple(_lines(endpoint, container, {"follow": 0}, after, tail))


def follow(endpoint: Endpoint, container: str, *, tail: int | None = None) -> Iterator[LogLine]:
    """Yields the last ``tail`` lines of the log, and then each line as it is written, across restarts, until the
    container is stopped or removed."""
    after = ""
    while True:
        for line in _lines(endpoint, container, {"follow": 1}, after, None if after else tail):
            after = line.written
            yield line
        # The engine ends the stream whenever the container's process ends.
        service = find(endpoint, container)
        if service is None or not service.is_up:
            return
        after = after or service.started
        time.sleep(_RECONNECT_SECONDS)


def _lines(
    endpoint: Endpoint, container: str, query: Mapping[str, str | int], after: str, tail: int | None
) -> Iterator[LogLine]:
    parameters = {**query, "stdout": 1, "stderr": 1, "timestamps": 1, "tail": "all" if tail is None else tail}
    if after:
        parameters["since"] = _timestamp(after)
    for payload in stream_demux.payloads(stream(endpoint, f"/containers/{container}/logs", query=parameters)):
        written, _, text = payload.decode(errors="replace").partition(" ")
        # `since` includes the moment itself; two lines never have the same one.
        if written != after:
            yield LogLine(written, text.rstrip("\r\n"))


def _timestamp(written: str) -> str:
    """Converts RFC 3339 in UTC to the engine's form, seconds since 1970 with nanoseconds, which `datetime` drops."""
    seconds, _, nanoseconds = written.removesuffix("Z").partition(".")
    return f"{int(datetime.fromisoformat(f'{seconds}+00:00').timestamp())}.{nanoseconds or 0}"


def _service(description: Mapping[str, Any]) -> Service:
    state = description["State"]
    return Service(
        id=description["Id"],
        name=description["Name"].removeprefix("/"),
        image=description["Config"]["Image"],
        image_id=description["Image"],
        labels=description["Config"].get("Labels") or {},
        status=state["Status"],
        health=(state.get("Health") or {}).get("Status", ""),
        started=state.get("StartedAt") or "",
        restarts=description.get("RestartCount") or 0,
        exit_code=state.get("ExitCode") or 0,
    )
