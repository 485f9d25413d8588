"""Short-lived containers, in which the checks of a finished image run."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.engine.client import stream_demux
from builder.engine.client.api import DISK_SECONDS, raw, request
from builder.engine.client.errors import EngineAnswerTooLargeError, EngineHTTPError, EngineTimeoutError
from builder.errors import BuildFailedError, ImageStateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.engine.client.endpoint import Endpoint

# What a container asks the engine for beside its image: https://docs.docker.com/reference/api/engine/
Devices = tuple[dict[str, Any], ...]
ALL_GPUS: Devices = ({"Count": -1, "Capabilities": [["gpu"]]},)
# A container whose builder was killed ends by itself, and is then removed by the engine.
_LONGEST_LIFE = 6 * 3600
# What a container may take that looks into the image of a stranger: of memory and output in bytes.
_MEMORY = 2 << 30
_MOST_PROCESSES = 4096
_LARGEST_OUTPUT = 64 << 20


@dataclass(frozen=True)
class ExecResult:
    """The result of a command: its exit code and its output, standard output and standard error as they came."""

    exit_code: int
    output: str


@dataclass(frozen=True)
class Container:
    """A running container. ``entrypoint`` runs each command of `run`."""

    endpoint: Endpoint
    id: str
    entrypoint: tuple[str, ...] = ()

    def run(self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> ExecResult:
        """Runs a command and waits for it, ``timeout`` seconds at most.

        Raises BuildFailedError when the time is over, or for more output than anything here writes: the container and
        everything in it is then killed.
        """
        try:
            return execute(self.endpoint, self.id, [*self.entrypoint, *argv], timeout, env)
        except EngineTimeoutError as error:
            _kill(self.endpoint, self.id)
            output = stream_demux.text(error.partial).rstrip()
            message = f"`{_shortened(argv)}` had not ended after {timeout:g} seconds and was stopped"
            raise BuildFailedError(f"{message}\n{output}" if output else message) from None
        except EngineAnswerTooLargeError:
            _kill(self.endpoint, self.id)
            message = f"`{_shortened(argv)}` wrote more than {_LARGEST_OUTPUT >> 20} MiB and was stopped"
            raise BuildFailedError(message) from None


def _shortened(argv: Sequence[str]) -> str:
    """A command on one line: of a script, the first."""
    first, *more = " ".join(argv).splitlines() or [""]
    return f"{first} …" if more else first


def execute(
    endpoint: Endpoint, container_id: str, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None
) -> ExecResult:
    """Runs a command in a running container.

    Raises EngineTimeoutError after ``timeout`` seconds, EngineAnswerTooLargeError for an output of 64 MiB: command and
    container may then go on.
    """
    body = {
        "Cmd": list(argv),
        "Env": [f"{key}={value}" for key, value in (env or {}).items()],
        "AttachStdout": True,
        "AttachStderr": True,
    }
    exec_id = request(endpoint, "POST", f"/containers/{container_id}/exec", body=body)["Id"]
    path, body = f"/exec/{exec_id}/start", {"Detach": False}
    output = raw(endpoint, "POST", path, body=body, timeout=timeout, largest=_LARGEST_OUTPUT)
    exit_code = request(endpoint, "GET", f"/exec/{exec_id}/json")["ExitCode"]
    return ExecResult(int(exit_code), stream_demux.text(output))


def start(container: Container, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Starts a command in a running container and leaves it to itself: it ends with the container at the latest."""
    body = {"Cmd": list(argv), "Env": [f"{key}={value}" for key, value in (env or {}).items()]}
    exec_id = request(container.endpoint, "POST", f"/containers/{container.id}/exec", body=body)["Id"]
    raw(container.endpoint, "POST", f"/exec/{exec_id}/start", body={"Detach": True})


def can_execute(container: Container) -> bool:
    """True if the container's programs run at all: those for another processor need a machine that emulates it."""
    try:
        return container.run(["true"], timeout=60).exit_code == 0
    except EngineHTTPError:
        return False  # its main process has ended already


@contextmanager
def running(
    endpoint: Endpoint,
    image: str,
    *,
    labels: Mapping[str, str],
    workdir: str | None = None,
    network: str = "none",
    mounts: Mapping[str, str] | None = None,
    platform: str = "",
    devices: Devices = (),
    memory: int = _MEMORY,
    entrypoint: tuple[str, ...] = (),
) -> Iterator[Container]:
    """Starts a container of ``image`` that only sleeps, for `Container.run`, and removes it in every case, also on ^C.

    ``network`` is Docker's network mode, ``mounts`` maps folders of the engine's machine to their paths inside; a
    container with mounts runs as root. ``platform`` chooses one of an image of several; ``devices`` are what it gets of
    the machine; ``memory`` is the most that it may take in bytes, 0 for what may take all. The image's own entrypoint
    does not run, but ``entrypoint`` runs each command. A process that is killed leaves the container behind:
    `remove_labelled` with one of its ``labels`` finds it. Raises ImageStateError for a missing image.
    """
    body: dict[str, Any] = {
        "Image": image,
        "Entrypoint": ["sleep", str(_LONGEST_LIFE)],
        "Cmd": [],
        "Labels": dict(labels),
        # An image's own health check would run commands beside ours.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "Init": True,
            "NetworkMode": network,
            "AutoRemove": True,
            "PidsLimit": _MOST_PROCESSES,
            "Memory": memory,
            "MemorySwap": memory,
        },
    }
    if workdir is not None:
        body["WorkingDir"] = workdir
    if mounts:
        body["User"] = "0"
        body["HostConfig"]["Mounts"] = [
            {"Type": "bind", "Source": source, "Target": target} for source, target in mounts.items()
        ]
    if devices:
        body["HostConfig"]["DeviceRequests"] = list(devices)
    container_id = _create(endpoint, body, platform)
    try:
        request(endpoint, "POST", f"/containers/{container_id}/start", timeout=DISK_SECONDS)
        yield Container(endpoint, container_id, entrypoint)
    finally:
        remove(endpoint, container_id)


@contextmanager
def created(endpoint: Endpoint, image: str, labels: Mapping[str, str]) -> Iterator[str]:
    """Creates a container of ``image`` whose files are read, and yields its id; it never starts, and is removed in
    every case. Raises ImageStateError for a missing image."""
    host = {"NetworkMode": "none"}
    container_id = _create(endpoint, {"Image": image, "Entrypoint": ["/"], "Labels": dict(labels), "HostConfig": host})
    try:
        yield container_id
    finally:
        remove(endpoint, container_id)


def _create(endpoint: Endpoint, body: Mapping[str, Any], platform: str = "") -> str:
    query = {"platform": platform} if platform else {}
    try:
        made = request(endpoint, "POST", "/containers/create", query=query, body=body, timeout=DISK_SECONDS)
    except EngineHTTPError as error:
        if not error.is_not_found:
            raise
        raise ImageStateError(f"the engine has no image {body['Image']}") from None
    return str(made["Id"])


def listing(endpoint: Endpoint, label: str = "", timeout: float = 60) -> list[dict[str, Any]]:
    """Returns every container, running or not, as the engine lists it; only those with ``label`` (``key`` or
    ``key=value``) if given."""
    filters = json.dumps({"label": [label]} if label else {})
    query: dict[str, str | int] = {"all": 1, "filters": filters}
    return request(endpoint, "GET", "/containers/json", query=query, timeout=timeout) or []


def output(endpoint: Endpoint, container_id: str) -> str:
    """Returns the last lines that a container wrote; empty if it no longer exists."""
    query: dict[str, str | int] = {"stdout": 1, "stderr": 1, "tail": 20}
    try:
        return stream_demux.text(raw(endpoint, "GET", f"/containers/{container_id}/logs", query=query))
    except EngineHTTPError:
        return ""


def remove_labelled(endpoint: Endpoint, label: str) -> int:
    """Removes every container with this label (``key`` or ``key=value``), running or not; returns how many."""
    containers = listing(endpoint, label)
    for container in containers:
        remove(endpoint, container["Id"])
    return len(containers)


def _kill(endpoint: Endpoint, container_id: str) -> None:
    # It may have ended at this very moment.
    with suppress(EngineHTTPError):
        request(endpoint, "POST", f"/containers/{container_id}/kill")


def remove(endpoint: Endpoint, container_id: str) -> None:
    """Kills and removes a container; does nothing if it no longer exists."""
    try:
        query = {"force": 1, "v": 1}
        request(endpoint, "DELETE", f"/containers/{container_id}", query=query, timeout=DISK_SECONDS)
    except EngineHTTPError as error:
        if error.is_conflict:  # it is being removed already
            _await_removal(endpoint, container_id)
        elif not error.is_not_found:
            raise


def _await_removal(endpoint: Endpoint, container_id: str) -> None:
    """Waits for the engine to finish removing a container that it began to remove when its process ended."""
    try:
        query = {"condition": "removed"}
        request(endpoint, "POST", f"/containers/{container_id}/wait", query=query, timeout=DISK_SECONDS)
    except EngineHTTPError as error:
        if not error.is_not_found:
            raise
