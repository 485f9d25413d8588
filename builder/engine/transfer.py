"""Copies images between engines and registries; only missing layers are transferred."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import processes, words
from builder.base.errors import TransferError
from builder.base.values import dataclass, field
from builder.engine import client, containers, images
from builder.engine.client import NO_ROOM, NO_ROOM_HINT, EngineHTTPError, EngineTimeoutError, quoted, request, stream
from builder.engine.images import DIGEST, split_tag

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping

    from builder.engine.client import Endpoint


# https://docs.docker.com/reference/api/engine/ (ImagePush, ImageCreate). The response is one JSON object per line.

# An engine reports its progress several times a second, and repeats the same progress while a registry hangs.
IDLE = 120.0
# The last status of a push, on both image stores: `7: digest: sha256:… size: 855`.
_PUSHED_DIGEST = re.compile(f"digest: ({DIGEST}) size: ")


@dataclass(frozen=True)
class LayerProgress:
    """The progress of a transfer, in bytes of the missing layers; ``unpacking`` while the engine unpacks them."""

    current: int
    total: int
    unpacking: bool = False

    def __str__(self) -> str:
        return "unpacking" if self.unpacking else words.size_of(self.current, self.total)


@dataclass(frozen=True)
class PulledLayers:
    """The layers that a pull fetched: their number, and the bytes of layers large enough to report progress."""

    layers: int
    bytes: int

    def __str__(self) -> str:
        count = words.counted(self.layers, "layer")
        return f"{count}, {words.size_text(self.bytes)}" if self.bytes else count


OnLayerProgress = Callable[[LayerProgress], None]


@dataclass
class _Layers:
    """The layers of a transfer; ``amounts`` are the transferred and the total bytes by layer."""

    amounts: dict[str, tuple[int, int]] = field(default_factory=dict)
    lacking: set[str] = field(default_factory=set)
    last: dict[str, tuple[object, object]] = field(default_factory=dict)
    digest: str = ""
    changed_at: float = field(default_factory=time.monotonic)

    def record(self, status: Mapping[str, Any]) -> LayerProgress | None:
        """Records a status; returns the progress of all layers if the status changed it."""
        phase, layer, detail = status.get("status"), status.get("id", ""), status.get("progressDetail") or {}
        if self.last.get(layer) != (phase, detail.get("current")):
            self.last[layer] = (phase, detail.get("current"))
            self.changed_at = time.monotonic()
        if match := _PUSHED_DIGEST.search(str(phase)):
            self.digest = match[1]
        if phase == "Pulling fs layer":
            self.lacking.add(layer)
        if phase in ("Downloading", "Pushing") and detail.get("total"):
            self.amounts[layer] = (int(detail.get("current") or 0), int(detail["total"]))
        elif phase != "Extracting":
            return None
        return LayerProgress(*self.sums(), unpacking=phase == "Extracting")

    def sums(self) -> tuple[int, int]:
        return sum(current for current, _ in self.amounts.values()), sum(total for _, total in self.amounts.values())


def push_image(
    endpoint: Endpoint, reference: str, auth_headers: Mapping[str, str], on_progress: OnLayerProgress
) -> str:
    """Pushes the engine's image with this reference; returns the digest that the reference now has in the registry.
    Raises TransferError if the push is incomplete; the next push does not send the received layers again."""
    repository, tag = split_tag(reference)
    path = f"/images/{quoted(repository)}/push"
    return _follow(endpoint, path, {"tag": tag}, auth_headers, on_progress, f"{reference} was not pushed").digest


def pull_layers(
    endpoint: Endpoint,
    repository: str,
    version: str,
    auth_headers: Mapping[str, str],
    on_progress: OnLayerProgress,
    platform: str = "",
) -> PulledLayers:
    """Pulls the tag or digest ``version`` of ``repository`` (``HOST/NAME``); returns the layers that the engine did not
    have. Raises TransferError if the pull is incomplete, or if the content does not match its digests."""
    query = {"fromImage": repository, "tag": version, **({"platform": platform} if platform else {})}
    layers = _follow(endpoint, "/images/create", query, auth_headers, on_progress, f"{repository} was not pulled")
    return PulledLayers(len(layers.lacking), layers.sums()[1])


def _follow(
    endpoint: Endpoint,
    path: str,
    query: Mapping[str, str],
    auth_headers: Mapping[str, str],
    on_progress: OnLayerProgress,
    failed: str,
) -> _Layers:
    layers = _Layers()
    where = f"{failed} (engine: {endpoint.origin})"
    headers = {"X-Registry-Auth": "e30=", **auth_headers}  # `{}`: no credentials, the default
    body = stream(endpoint, path, query=dict(query), method="POST", headers=headers, timeout=IDLE, idle=IDLE)
    stuck = f"{where}: no progress for {IDLE:g} seconds"
    stuck_hint = "check that the registry answers, and that neither its disk nor the network is too slow"
    try:
        for status in client.objects(body):
            if error := status.get("error") or (status.get("errorDetail") or {}).get("message"):
                raise TransferError(f"{where}: {error}", hint=_hint(str(error)))
            if progress := layers.record(status):
                on_progress(progress)
            if time.monotonic() - layers.changed_at > IDLE:
                raise TransferError(stuck, hint=stuck_hint)
    except EngineHTTPError as error:
        raise TransferError(f"{where}: {error.explanation}", hint=_hint(error.explanation)) from None
    except EngineTimeoutError:
        raise TransferError(stuck, hint=stuck_hint) from None
    return layers


def is_denied(error: str) -> bool:
    """True if a registry requires a login, or the login does not suffice. Registries that create a repository at its
    first push also deny access to one that does not exist yet."""
    refused = ("unauthorized", "no basic auth", "denied", "authentication required", "403 forbidden")
    return any(phrase in error.lower() for phrase in refused)


def _hint(error: str) -> str:
    """The remedy for an error of an engine or a registry."""
    lowered = error.lower()
    if NO_ROOM in lowered:
        return NO_ROOM_HINT
    if is_denied(error):
        return "log in first: `docker login REGISTRY`"
    if "toomanyrequests" in lowered or "429 too many" in lowered:
        return "the registry limits the requests: wait, or log in (`docker login REGISTRY`) for a higher limit"
    if "x509: " in lowered and "unknown authority" in lowered:
        return "put the certificate of its authority into /etc/docker/certs.d/REGISTRY/ca.crt on the engine's machine"
    if (
        "unexpected commit digest" in lowered
    ):  # containerd keeps this part until its next clean-up, and would use it again
        return "a layer arrived damaged: wait a minute until the engine has removed it, then run the command again"
    if "server gave http response to https client" in lowered:
        return 'the registry has no TLS: add it to "insecure-registries" in the daemon.json of this engine'
    return (
        "check the image's name, and that its registry runs; then run the command again: layers that arrived are kept"
    )


# A temporary registry on this machine's loopback copies images to other machines. Its data stays in a volume of the
# engine, so that the next copy pushes only new layers. `docker volume rm builder-registry` frees that space; the next
# copy then pushes all layers.

LABEL = "builder.registry"
VOLUME = "builder-registry"
# Docker's own registry. Any registry that uses /var/lib/registry and REGISTRY_HTTP_ADDR also works.
IMAGE = "registry:3"
_START_WAIT = 20.0
_OWN_REGISTRY_HINT = "set `registry:` in builder.yaml: images then travel through that registry"


@contextmanager
def serving(endpoint: Endpoint, environ: Mapping[str, str], on_progress: OnLayerProgress) -> Iterator[int]:
    """Runs a registry (BUILDER_REGISTRY_IMAGE) during the block; yields its port on 127.0.0.1. Raises TransferError
    if the engine is not on this machine, or the registry's image cannot be pulled or started."""
    if not endpoint.host.startswith("unix://"):
        message = f"the engine at {endpoint.host} is not on this machine, so builder cannot start a registry beside it"
        raise TransferError(message, hint=_OWN_REGISTRY_HINT)
    for orphan in containers.container_listing(endpoint, LABEL):  # of a killed process
        if not Path("/proc", orphan["Labels"][LABEL]).exists():
            containers.remove_container(endpoint, orphan["Id"])
    port = processes.free_port()
    container = _create(endpoint, environ.get("BUILDER_REGISTRY_IMAGE") or IMAGE, port, on_progress)
    try:
        try:
            request(endpoint, "POST", f"/containers/{container}/start")
        except EngineHTTPError as error:
            raise TransferError(
                f"the registry for the copy could not be started: {error.explanation}", hint=_OWN_REGISTRY_HINT
            ) from None
        _await(endpoint, container, port)
        yield port
    finally:
        containers.remove_container(endpoint, container)


def _create(endpoint: Endpoint, image: str, port: int, on_progress: OnLayerProgress) -> str:
    if images.inspect_image(endpoint, image) is None:
        repository, tag = split_tag(image)
        try:
            pull_layers(endpoint, repository, tag, {}, on_progress)
        except TransferError as error:
            message = f"no registry is available for the copy: {error.message}"
            hint = "set `registry:` in builder.yaml, or name a registry image in BUILDER_REGISTRY_IMAGE"
            raise TransferError(message, hint=hint) from None
    body = {
        "Image": image,
        "Env": [f"REGISTRY_HTTP_ADDR=127.0.0.1:{port}", "REGISTRY_LOG_LEVEL=warn", "OTEL_TRACES_EXPORTER=none"],
        "Labels": {LABEL: str(os.getpid())},
        # With the host's network, only this machine can reach the registry; the engine's bridges do not matter.
        "HostConfig": {"NetworkMode": "host", "AutoRemove": True, "Binds": [f"{VOLUME}:/var/lib/registry"]},
    }
    container_id: str = request(endpoint, "POST", "/containers/create", body=body)["Id"]
    return container_id


def _await(endpoint: Endpoint, container: str, port: int) -> None:
    deadline = time.monotonic() + _START_WAIT
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    lines = []
    with suppress(EngineHTTPError):  # the engine removes a container that ended
        lines = [line.text for line in containers.container_log(endpoint, container, tail=1)]
    message = f"the registry for the copy did not start: {''.join(lines) or 'it does not answer'}"
    raise TransferError(message, hint=_OWN_REGISTRY_HINT)


# ssh's message after a request for any free port of the other machine.
_ALLOCATED = re.compile(r"Allocated port (\d+) for remote forward")
_OPTIONS = (
    *("-N", "-T"),
    *("-o", "ExitOnForwardFailure=yes"),
    *("-o", "BatchMode=yes"),
    *("-o", "ServerAliveInterval=15"),
    # A shared connection would keep the forwarding after this copy.
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
    *("-o", "LogLevel=INFO"),
)


def require_route(endpoint: Endpoint) -> None:
    """Raises TransferError for a node whose engine cannot reach a registry on this machine's loopback."""
    if not endpoint.host.startswith(("unix://", "ssh://")):
        raise TransferError(
            f"the engine at {endpoint.host} cannot reach a registry on this machine, and builder.yaml names no other",
            hint="set `registry:` in builder.yaml to a registry that this machine and the node both reach, or set the "
            "node's engine to ssh://USER@HOST",
        )


@contextmanager
def to_loopback(endpoint: Endpoint, port: int) -> Iterator[int]:
    """Forwards a port on the node's 127.0.0.1 to ``port`` on this machine's during the block; yields the node's port.
    A node on this machine needs no tunnel; a node behind ssh gets a reverse tunnel. Raises TransferError."""
    require_route(endpoint)
    if endpoint.host.startswith("unix://"):
        yield port
        return
    import subprocess

    options = [*_OPTIONS, "-R", f"127.0.0.1:0:127.0.0.1:{port}"]
    process = subprocess.Popen(
        [*processes.tied_to_parent(), *client.ssh_argv(endpoint.host, options, [])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    with process:
        try:
            yield _allocated(endpoint, process)
        finally:
            process.terminate()


def _allocated(endpoint: Endpoint, process: subprocess.Popen[str]) -> int:
    lines = []
    for line in process.stderr or ():
        if match := _ALLOCATED.search(line):
            return int(match[1])
        lines.append(line.strip())
    message = f"the tunnel to {endpoint.host} did not open: {'; '.join(lines[-3:]) or 'ssh ended'}"
    hint = "check that `ssh` logs in without a password, and that sshd allows TCP forwarding"
    raise TransferError(message, hint=hint)
