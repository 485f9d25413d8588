"""A short-lived container to look into an image with: what the checks of a finished image run in."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.engine.client import stream_demux
from builder.engine.client.api import raw, request
from builder.engine.client.errors import RefusedError, SlowError
from builder.errors import BuildFailedError, ImageStateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.engine.client.endpoint import Endpoint

_NOT_FOUND = 404
_BEING_REMOVED = 409
# A container whose builder was killed ends by itself, and is then removed by the engine.
_LONGEST_LIFE = 6 * 3600


@dataclass(frozen=True)
class Ran:
    """What a command did: its exit code, and its output: both streams, as they came."""

    code: int
    output: str


@dataclass(frozen=True)
class Box:
    """A running container."""

    endpoint: Endpoint
    id: str

    def run(self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> Ran:
        """Runs a command and waits for it, ``timeout`` seconds at most.

        Raises BuildFailedError when the time is over: the container is then killed, and with it everything in it.
        """
        try:
            return execute(self.endpoint, self.id, argv, timeout, env)
        except SlowError as error:
            _kill(self.endpoint, self.id)
            said = stream_demux.text(error.partial).rstrip()
            raise BuildFailedError(
                f"`{' '.join(argv)}` had not ended after {timeout:g} seconds and was stopped" + (said and f"\n{said}")
            ) from None


def execute(
    endpoint: Endpoint, container: str, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None
) -> Ran:
    """Runs a command in a running container. Raises faults.SlowError when ``timeout`` seconds are over: the command may
    then go on, as the container does."""
    body = {
        "Cmd": list(argv),
        "Env": [f"{key}={value}" for key, value in (env or {}).items()],
        "AttachStdout": True,
        "AttachStderr": True,
    }
    exec_id = request(endpoint, "POST", f"/containers/{container}/exec", body=body)["Id"]
    output = raw(endpoint, "POST", f"/exec/{exec_id}/start", body={"Detach": False}, timeout=timeout)
    code = request(endpoint, "GET", f"/exec/{exec_id}/json")["ExitCode"]
    return Ran(int(code), stream_demux.text(output))


def works(box: Box) -> bool:
    """Whether the container's programs run at all: those for another processor do where the machine emulates it."""
    try:
        return box.run(["true"], timeout=60).code == 0
    except RefusedError:
        return False  # what it was started with has ended already


@contextmanager
def running(
    endpoint: Endpoint,
    image: str,
    *,
    labels: Mapping[str, str],
    workdir: str | None = None,
    network: str = "none",
    mounts: Mapping[str, str] | None = None,
) -> Iterator[Box]:
    """A container of ``image`` that only sleeps, for `Box.run`; removed in every case, also on ^C.

    ``network`` is Docker's network mode, ``mounts`` are folders of the engine's machine with their places inside; where
    there are any, it runs as root. The image's entrypoint does not run. A process that is killed leaves the
    container behind: `remove_labelled` with one of its ``labels`` finds it. Raises ImageStateError for a missing image.
    """
    body: dict[str, Any] = {
        "Image": image,
        "Entrypoint": ["sleep", str(_LONGEST_LIFE)],
        "Cmd": [],
        "Labels": dict(labels),
        # An image's own health check would run commands beside ours.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {"Init": True, "NetworkMode": network, "AutoRemove": True},
    }
    if workdir is not None:
        body["WorkingDir"] = workdir
    if mounts:
        body["User"] = "0"
        body["HostConfig"]["Mounts"] = [
            {"Type": "bind", "Source": source, "Target": target} for source, target in mounts.items()
        ]
    try:
        container = request(endpoint, "POST", "/containers/create", body=body)["Id"]
    except RefusedError as error:
        if error.status != _NOT_FOUND:
            raise
        raise ImageStateError(f"the engine has no image {image}") from None
    try:
        request(endpoint, "POST", f"/containers/{container}/start")
        yield Box(endpoint, container)
    finally:
        remove(endpoint, container)


def labelled(endpoint: Endpoint, label: str) -> list[dict[str, Any]]:
    """Every container with this label (``key`` or ``key=value``), running or not, as the engine lists it."""
    filters = json.dumps({"label": [label]})
    return request(endpoint, "GET", "/containers/json", query={"all": 1, "filters": filters}) or []


def output(endpoint: Endpoint, container: str) -> str:
    """The last lines that a container wrote; empty where it is gone."""
    query: dict[str, str | int] = {"stdout": 1, "stderr": 1, "tail": 20}
    try:
        return stream_demux.text(raw(endpoint, "GET", f"/containers/{container}/logs", query=query))
    except RefusedError:
        return ""


def remove_labelled(endpoint: Endpoint, label: str) -> int:
    """Removes every container with this label (``key`` or ``key=value``), running or not; returns how many."""
    found = labelled(endpoint, label)
    for container in found:
        remove(endpoint, container["Id"])
    return len(found)


def _kill(endpoint: Endpoint, container: str) -> None:
    # It may have ended in this very moment.
    with suppress(RefusedError):
        request(endpoint, "POST", f"/containers/{container}/kill")


def remove(endpoint: Endpoint, container: str) -> None:
    """Ends a container at once, and removes it; nothing happens where it is gone."""
    try:
        request(endpoint, "DELETE", f"/containers/{container}", query={"force": 1, "v": 1})
    except RefusedError as error:
        if error.status == _BEING_REMOVED:
            _await_removal(endpoint, container)
        elif error.status != _NOT_FOUND:
            raise


def _await_removal(endpoint: Endpoint, container: str) -> None:
    """Waits for the engine to finish removing a container that it began to remove when its process ended."""
    try:
        request(endpoint, "POST", f"/containers/{container}/wait", query={"condition": "removed"})
    except RefusedError as error:
        if error.status != _NOT_FOUND:
            raise
