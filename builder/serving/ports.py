"""A check that a port is free, made before a server spends ten minutes on loading a model to find that it is not."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from builder.definitions.recipes.container import LABEL
from builder.engine import services
from builder.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Collection

    from builder.engine.client.endpoint import Endpoint


def require_free(endpoint: Endpoint, host: str | None, port: int, leaving: Collection[str] = ()) -> None:
    """Raises ConflictError if a container of this program uses ``port`` on the engine, or, where the engine runs on
    this machine, anything else does. The containers in ``leaving`` (by name) do not count.
    """
    services_on_port = tuple(
        service for service in services.labelled(endpoint, f"{LABEL}.port={port}") if service.is_up
    )
    for service in services_on_port:
        if service.name not in leaving:
            image = service.labels.get(f"{LABEL}.image", service.image)
            raise ConflictError(
                f"port {port} is in use: {service.name} serves there from {image}",
                hint=f"`builder stop {service.name}` ends it; `--port N` takes another port",
            )
    if not services_on_port and endpoint.host.startswith("unix://") and not _can_listen(host, port):
        raise ConflictError(
            f"port {port} is in use on this machine",
            hint=f"`ss -ltnp 'sport = :{port}'` shows by what; `--port N` takes another port",
        )


def _can_listen(host: str | None, port: int) -> bool:
    """False only if the port is in use; any other problem is better described by the server itself."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or "0.0.0.0",  # noqa: S104
            port,
            type=socket.SOCK_STREAM,
        )[0]
        with socket.socket(family, kind, protocol) as test_socket:
            test_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            test_socket.bind(address)
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True
