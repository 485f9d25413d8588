"""Short-lived containers for checks, long-lived containers for serving, and volumes as marks.

Everything uses the engine's API, so the engine may be on another machine."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from builder.base.errors import BuildFailedError, ConflictError, ImageStateError
from builder.base.values import dataclass
from builder.engine import client
from builder.engine.client import (
    DISK_SECONDS,
    EngineAnswerTooLargeError,
    EngineConflictError,
    EngineHTTPError,
    EngineMissingError,
    EngineTimeoutError,
    listed,
    quoted,
    raw,
    request,
    stream,
)

if TYPE_CHECKING:
    from builder.engine.client import Endpoint, EngineAnswer


# The devices that a container requests: https://docs.docker.com/reference/api/engine/
Devices = tuple[dict[str, Any], ...]
ALL_GPUS: Devices = ({"Count": -1, "Capabilities": [["gpu"]]},)
# If builder is killed, its container ends after this many seconds, and the engine removes it.
_LONGEST_LIFE = 6 * 3600
# The limits of a container that reads an untrusted image; memory and output in bytes.
_MEMORY = 2 << 30
_MOST_PROCESSES = 4096
_LARGEST_OUTPUT = 64 << 20


@dataclass(frozen=True)
class ExecResult:
    """The result of a command: its exit code, and its standard output and standard error in the order of writing."""

    exit_code: int
    output: str

    @property
    def last_line(self) -> str:
        return (self.output.strip().splitlines() or [""])[-1]


@dataclass(frozen=True)
class Container:
    """A running container. ``entrypoint`` runs each command of `run`."""

    endpoint: Endpoint
    id: str
    entrypoint: tuple[str, ...] = ()

    def run(self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> ExecResult:
        """Runs a command and waits for it, at most ``timeout`` seconds. Raises BuildFailedError, and kills the
        container, if the command takes longer or writes too much."""
        try:
            return execute(self.endpoint, self.id, [*self.entrypoint, *argv], timeout, env)
        except EngineTimeoutError as error:
            why = f"did not end within {timeout:g} seconds and was stopped\n{client.text(error.partial)}".rstrip()
        except EngineAnswerTooLargeError:
            why = f"wrote more than {_LARGEST_OUTPUT >> 20} MiB and was stopped"
        with suppress(EngineHTTPError):  # the container may have just ended
            request(self.endpoint, "POST", f"/containers/{self.id}/kill")
        first, *more = " ".join(argv).splitlines() or [""]
        raise BuildFailedError(f"`{first}{' …' if more else ''}` {why}")


def execute(
    endpoint: Endpoint, container_id: str, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None
) -> ExecResult:
    """Runs a command in a running container. Raises EngineTimeoutError after ``timeout`` seconds, and
    EngineAnswerTooLargeError for more than 64 MiB of output. The command and the container may continue after that."""
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
    return ExecResult(int(exit_code), client.text(output))


def reading_labels() -> dict[str, str]:
    """Labels for a container that reads an image. If this process is killed, the container ends by itself."""
    return {"builder.reading": f"{os.getpid()}-{os.urandom(4).hex()}"}


def can_execute(container: Container) -> bool:
    """True if the container's programs run. Programs for another processor need a machine that emulates it."""
    try:
        return container.run(["true"], timeout=60).exit_code == 0
    except EngineHTTPError:
        return False  # its main process has already ended


@contextmanager
def running(
    endpoint: Endpoint,
    image: str,
    *,
    labels: Mapping[str, str],
    workdir: str = "",
    mounts: Mapping[str, str] | None = None,
    platform: str = "",
    devices: Devices = (),
    memory: int = _MEMORY,
    entrypoint: tuple[str, ...] = (),
    read_only: bool = False,
) -> Iterator[Container]:
    """Starts a container of ``image`` for `Container.run`. The container has no network and only sleeps. It is always
    removed, also on ^C; `remove_labelled` removes the containers of killed processes. Raises ImageStateError for a
    missing image.

    ``mounts`` maps folders of the engine's machine to paths in the container; missing folders are made. A container
    with mounts runs as root. ``platform`` selects one platform of the image. ``memory`` is in bytes, 0 for no limit.
    The image's own entrypoint does not run; ``entrypoint`` runs each command. With ``read_only``, only ``/tmp`` is
    writable.
    """
    binds = [
        {"Type": "bind", "Source": source, "Target": target, "BindOptions": {"CreateMountpoint": True}}
        for source, target in (mounts or {}).items()
    ]
    host = {"Init": True, "NetworkMode": "none", "AutoRemove": True, "Mounts": binds, "DeviceRequests": list(devices)}
    if read_only:
        host |= {"ReadonlyRootfs": True, "Tmpfs": {"/tmp": ""}}  # noqa: S108
    body = {
        "Image": image,
        "Entrypoint": ["sleep", str(_LONGEST_LIFE)],
        "Cmd": [],
        "Labels": dict(labels),
        "User": "0" if mounts else "",  # empty: the image's own
        "WorkingDir": workdir,
        # The image's own health check would run more commands.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {**host, "PidsLimit": _MOST_PROCESSES, "Memory": memory, "MemorySwap": memory},
    }
    container_id = _create(endpoint, body, platform)
    try:
        request(endpoint, "POST", f"/containers/{container_id}/start", timeout=DISK_SECONDS)
        yield Container(endpoint, container_id, entrypoint)
    finally:
        remove_container(endpoint, container_id)


def _create(endpoint: Endpoint, body: Mapping[str, Any], platform: str = "", name: str = "") -> str:
    query = {key: value for key, value in (("platform", platform), ("name", name)) if value}
    try:
        made = request(endpoint, "POST", "/containers/create", query=query, body=body, timeout=DISK_SECONDS)
    except EngineMissingError:
        raise ImageStateError(f"the engine has no image {body['Image']}") from None
    return str(made["Id"])


def container_listing(endpoint: Endpoint, label: str = "", timeout: float = 60) -> list[EngineAnswer]:
    """Returns all containers, running or not, in the engine's format. A ``label`` (``key[=value]``) selects some."""
    filters = json.dumps({"label": [label]} if label else {})
    query: dict[str, str | int] = {"all": 1, "filters": filters}
    return listed(endpoint, "/containers/json", query=query, timeout=timeout)


def remove_labelled(endpoint: Endpoint, label: str) -> int:
    containers = container_listing(endpoint, label)
    for container in containers:
        remove_container(endpoint, container["Id"])
    return len(containers)


def remove_container(endpoint: Endpoint, container_id: str) -> None:
    """Kills and removes a container; does nothing if it no longer exists."""
    path, query = f"/containers/{container_id}", {"force": 1, "v": 1}
    with suppress(EngineMissingError):
        try:
            request(endpoint, "DELETE", path, query=query, timeout=DISK_SECONDS)
        except EngineConflictError:  # the process ended, and the engine is already removing the container
            request(endpoint, "POST", f"{path}/wait", query={"condition": "removed"}, timeout=DISK_SECONDS)


# The engine's API puts files into a container, and reads files of an image, also on another machine.
# https://docs.docker.com/reference/api/engine/ (PutContainerArchive, ContainerArchive, ContainerExport)

_IDLE = 300.0
_TAR_MARGIN = 64 << 10
_FOLDER, _FILE = 0o777, 0o644  # the image's user, whoever that is, may add files


def read_image_file(endpoint: Endpoint, image: str, path: str, labels: Mapping[str, str], largest: int) -> bytes | None:
    """Returns the content of a file of ``image``, None if the path does not exist. Runs no program of the image. Raises
    ImageStateError if the path is not a file, or the file has more than ``largest`` bytes."""
    import tarfile

    body = {"Image": image, "Entrypoint": ["/"], "Labels": dict(labels), "HostConfig": {"NetworkMode": "none"}}
    container_id = _create(endpoint, body)
    try:
        target = f"/containers/{container_id}/archive"
        packed = raw(endpoint, "GET", target, query={"path": path}, largest=largest + _TAR_MARGIN)
    except EngineMissingError:
        return None
    except EngineAnswerTooLargeError:
        raise ImageStateError(f"{path} of {image} has more than {largest} bytes") from None
    finally:
        remove_container(endpoint, container_id)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        member = archive.next()
        file = archive.extractfile(member) if member and member.isfile() else None
        if file is None:
            raise ImageStateError(f"{path} of {image} is not a file")
        return file.read()


def put_file(container: Container, files: Mapping[PurePosixPath, bytes]) -> None:
    """Writes files at their absolute paths, and makes missing folders. Raises ImageStateError if the engine refuses,
    such as for a path below a file."""
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in sorted({parent for path in files for parent in path.parents if parent.name}):
            entry = tarfile.TarInfo(str(folder).lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, _FOLDER
            archive.addfile(entry)
        for path, content in files.items():
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            entry.size, entry.mode = len(content), _FILE
            archive.addfile(entry, io.BytesIO(content))
    put_archive(container, "/", len(buffer.getvalue()), [buffer.getvalue()])


def put_archive(container: Container, folder: str, size: int, pieces: Iterable[bytes]) -> None:
    """Unpacks a tar of ``size`` bytes in a folder of a container, as root. Raises as `put_file` does."""
    target = f"/containers/{quoted(container.id)}/archive?path={quoted(folder)}"
    status, body = client.upload(container.endpoint, target, size, pieces, _IDLE, method="PUT")
    if status >= 400:
        raise ImageStateError(f"files cannot be copied into the container: {body.decode(errors='replace').strip()}")


# Seconds for the engine to kill a container and to respond, in addition to the container's own time.
_STOP_SLACK = 60


@dataclass(frozen=True)
class Service:
    """The state of a container. ``image`` is the name of its image when it was created, ``image_id`` the engine's id of
    that image. ``status`` (created, running, paused …) and ``health`` (starting, healthy, unhealthy, or empty) are the
    engine's words. ``started`` is RFC 3339. ``restarts`` counts restarts by the engine. ``exit_code`` is the last exit
    code. ``out_of_memory`` is True if the kernel killed the container because memory ran out."""

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
    out_of_memory: bool = False

    @property
    def is_up(self) -> bool:
        """True if the container has processes, which may be paused, or the engine is about to restart it."""
        return self.status in {"running", "paused", "restarting"}


@dataclass(frozen=True)
class LogLine:
    """A line of a container's log; ``written`` is a time of the engine's clock, RFC 3339 with nanoseconds."""

    written: str
    text: str


def find_container(endpoint: Endpoint, name: str, timeout: float = 60) -> Service | None:
    with suppress(EngineMissingError):
        service = _service(request(endpoint, "GET", f"/containers/{quoted(name)}/json", timeout=timeout))
        if name in {service.name, service.id}:  # the engine also accepts a prefix of an id
            return service
    return None


def service_process(endpoint: Endpoint, container: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The arguments and the environment of a container; the environment may contain secrets."""
    configured = request(endpoint, "GET", f"/containers/{quoted(container)}/json")["Config"]
    argv = (*(configured.get("Entrypoint") or ()), *(configured.get("Cmd") or ()))
    variables = (variable.partition("=") for variable in configured.get("Env") or ())
    return argv, {name: value for name, _, value in variables}


def labelled(endpoint: Endpoint, label: str, timeout: float = 60) -> tuple[Service, ...]:
    listing = container_listing(endpoint, label, timeout)
    # A container may be removed during the loop.
    services = [service for each in listing if (service := find_container(endpoint, each["Id"], timeout))]
    return tuple(sorted(services, key=lambda service: service.name))


def create(endpoint: Endpoint, name: str, body: Mapping[str, Any]) -> Service:
    """Creates a container without starting it; ``body`` is the request body of the engine's API. Raises ImageStateError
    for a missing image, and ConflictError if another container has the name."""
    try:
        container_id = _create(endpoint, body, name=name)
    except EngineConflictError:
        message = f"another command has just created a container named {name}"
        hint = "run the command again: it uses that server, or reports the problem"
        raise ConflictError(message, hint=hint) from None
    return _service(request(endpoint, "GET", f"/containers/{container_id}/json"))


def start_service(endpoint: Endpoint, container: str) -> None:
    """Starts a container. Raises EngineHTTPError on failure: no such program or device, or a port is in use."""
    request(endpoint, "POST", f"/containers/{container}/start", timeout=DISK_SECONDS)


def stop_container(endpoint: Endpoint, container: str, seconds: int) -> Service | None:
    """Stops a container with its own signal, kills it after ``seconds``, and removes it; returns its last state."""
    _stop(endpoint, container, seconds)
    ended = find_container(endpoint, container)
    remove_container(endpoint, container)
    return ended


def halt_container(endpoint: Endpoint, container: str, seconds: int) -> None:
    """Stops a container with its own signal, kills it after ``seconds``, and keeps it. It stays stopped until the
    engine itself restarts, which starts the containers with this restart policy
    (https://docs.docker.com/engine/containers/start-containers-automatically/)."""
    with suppress(EngineMissingError):
        policy = {"RestartPolicy": {"Name": "always"}}
        request(endpoint, "POST", f"/containers/{container}/update", body=policy)
    _stop(endpoint, container, seconds)


def _stop(endpoint: Endpoint, container: str, seconds: int) -> None:
    with suppress(EngineMissingError):
        path, timeout = f"/containers/{container}/stop", seconds + _STOP_SLACK
        request(endpoint, "POST", path, query={"t": seconds}, timeout=timeout)


def container_log(
    endpoint: Endpoint, container: str, *, after: str = "", tail: int | None = None
) -> tuple[LogLine, ...]:
    """Returns the lines of the log after the time ``after``; if ``tail`` is given, at most the last ``tail`` lines."""
    return tuple(_lines(endpoint, container, {"follow": 0}, after, tail))


def follow_log(endpoint: Endpoint, container: str, *, tail: int | None = None) -> Iterator[LogLine]:
    """Yields the last ``tail`` lines of the log and each new line, across restarts, until the container is stopped."""
    after = ""
    while True:
        for line in _lines(endpoint, container, {"follow": 1}, after, None if after else tail):
            after = line.written
            yield line
        # The engine ends the stream each time the container's process ends.
        service = find_container(endpoint, container)
        if service is None or not service.is_up:
            return
        after = after or service.started
        time.sleep(0.5)


def _lines(
    endpoint: Endpoint, container: str, query: Mapping[str, str | int], after: str, tail: int | None
) -> Iterator[LogLine]:
    parameters = {**query, "stdout": 1, "stderr": 1, "timestamps": 1, "tail": "all" if tail is None else tail}
    if after:
        # The engine's time format: seconds since 1970 with nanoseconds. `datetime` has no nanoseconds.
        seconds, _, nanoseconds = after.removesuffix("Z").partition(".")
        parameters["since"] = f"{int(datetime.fromisoformat(f'{seconds}+00:00').timestamp())}.{nanoseconds or 0}"
    for payload in client.payloads(stream(endpoint, f"/containers/{container}/logs", query=parameters)):
        written, _, text = payload.decode(errors="replace").partition(" ")
        # `since` includes the given time itself. No two lines have the same time.
        if written != after:
            yield LogLine(written, text.rstrip("\r\n"))


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
        out_of_memory=bool(state.get("OOMKilled")),
    )


# Empty volumes as marks in the engine. Only one process can create a name, and the labels record its owner. The engine
# has no request that sets only a free tag, but creating a volume is exclusive: if several processes ask for the same
# name, one of them creates the volume, and all get the labels of that volume.


def create_volume(endpoint: Endpoint, name: str, labels: Mapping[str, str]) -> Mapping[str, str]:
    """Creates the volume ``name`` unless it already exists; returns the labels of the new or existing volume."""
    try:
        volume = request(endpoint, "POST", "/volumes/create", body={"Name": name, "Labels": dict(labels)})
    except EngineConflictError:  # some engines refuse the second request instead of returning the existing volume
        return find_volume(endpoint, name) or {}
    return volume.get("Labels") or {}


def find_volume(endpoint: Endpoint, name: str) -> Mapping[str, str] | None:
    with suppress(EngineMissingError):
        return request(endpoint, "GET", f"/volumes/{quoted(name)}").get("Labels") or {}
    return None


def labelled_volumes(endpoint: Endpoint, labels: Iterable[str]) -> dict[str, Mapping[str, str]]:
    """Returns by name the labels of each volume that has all of ``labels`` (``key`` or ``key=value``)."""
    query = {"filters": json.dumps({"label": list(labels)})}
    volumes = request(endpoint, "GET", "/volumes", query=query).get("Volumes") or ()
    return {volume["Name"]: volume.get("Labels") or {} for volume in volumes}


def remove_volume(endpoint: Endpoint, name: str) -> bool:
    """Removes a volume; False if no volume has that name, or a container uses it."""
    with suppress(EngineMissingError, EngineConflictError):
        request(endpoint, "DELETE", f"/volumes/{quoted(name)}")
        return True
    return False
