"""A temporary registry on this machine's loopback, through which images are copied to other machines.

Its data stays in a volume of the engine, so that the next copy has only the new layers to push.
`docker volume rm builder-registry` frees that space; the next copy then starts from nothing.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.engine import containers, images
from builder.engine.client.api import request
from builder.engine.client.errors import EngineHTTPError
from builder.engine.reference import split_tag
from builder.engine.registry import transfer
from builder.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.transfer import OnLayerProgress

LABEL = "builder.registry"
VOLUME = "builder-registry"
# Docker's own registry; any that keeps its data in /var/lib/registry and reads REGISTRY_HTTP_ADDR works as well.
IMAGE = "registry:3"
_START_WAIT = 20.0


@contextmanager
def serving(endpoint: Endpoint, environ: Mapping[str, str], on_progress: OnLayerProgress) -> Iterator[int]:
    """Runs a registry during the block; yields its port on 127.0.0.1. BUILDER_REGISTRY_IMAGE names another image.

    Raises TransferError where the engine is not on this machine, or the registry's image cannot be pulled or started.
    """
    if not endpoint.host.startswith("unix://"):
        raise TransferError(
            f"the engine at {endpoint.host} is not on this machine, where a registry would have to be started",
            hint="set `registry:` in builder.yaml: images then go through that one",
        )
    _remove_orphans(endpoint)
    port = _free_port()
    container = _create(endpoint, environ.get("BUILDER_REGISTRY_IMAGE") or IMAGE, port, on_progress)
    try:
        try:
            request(endpoint, "POST", f"/containers/{container}/start")
        except EngineHTTPError as error:
            raise TransferError(f"the registry for the copy could not be started: {error.explanation}") from None
        _await(endpoint, container, port)
        yield port
    finally:
        containers.remove(endpoint, container)


def _create(endpoint: Endpoint, image: str, port: int, on_progress: OnLayerProgress) -> str:
    if images.inspect(endpoint, image) is None:
        repository, tag = split_tag(image)
        try:
            transfer.pull(endpoint, repository, tag, {}, on_progress)
        except TransferError as error:
            raise TransferError(
                f"no registry for the copy: {error.message}",
                hint="set `registry:` in builder.yaml, or name an image of a registry in BUILDER_REGISTRY_IMAGE",
            ) from None
    body = {
        "Image": image,
        "Env": [f"REGISTRY_HTTP_ADDR=127.0.0.1:{port}", "REGISTRY_LOG_LEVEL=warn", "OTEL_TRACES_EXPORTER=none"],
        "Labels": {LABEL: str(os.getpid())},
        # On the host's network, only this machine reaches it, whatever the engine's bridges are.
        "HostConfig": {"NetworkMode": "host", "AutoRemove": True, "Binds": [f"{VOLUME}:/var/lib/registry"]},
    }
    container_id: str = request(endpoint, "POST", "/containers/create", body=body)["Id"]
    return container_id


def _remove_orphans(endpoint: Endpoint) -> None:
    """Removes the registries of processes that were killed."""
    for container in containers.listing(endpoint, LABEL):
        if not _is_alive(container["Labels"][LABEL]):
            containers.remove(endpoint, container["Id"])


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await(endpoint: Endpoint, container: str, port: int) -> None:
    deadline = time.monotonic() + _START_WAIT
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    last_line = containers.output(endpoint, container).strip().splitlines()[-1:] or ["it does not answer"]
    raise TransferError(f"the registry for the copy did not start: {last_line[0]}")
