"""A real BuildKit on another machine, for tests: the BuildKit of a second engine, behind a separate address."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests import shared
from tests.engine.relay import Relay
from tests.registries import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

# The request of buildx's docker driver to an engine: https://docs.docker.com/reference/api/engine/ (session, grpc)
_UPGRADE = b"POST /grpc HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


class GrpcRelay(Relay):
    """Passes every connection on to the engine's BuildKit, as if BuildKit itself listened on the socket."""

    def connect(self) -> socket.socket:
        far = super().connect()
        far.sendall(_UPGRADE)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += far.recv(1)
        assert head.startswith(b"HTTP/1.1 101"), head
        return far


@contextmanager
def instance(node: Node, buildx: tuple[str, ...]) -> Iterator[str]:
    """Makes a buildx instance with the remote driver on the BuildKit of ``node``, without this engine's images."""
    name = shared.unique_name()
    with tempfile.TemporaryDirectory(prefix="buildkit-") as folder:
        path = Path(folder, "buildkitd.sock")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            relay = GrpcRelay(listening, node.host.removeprefix("unix://"))
            threading.Thread(target=relay.run, daemon=True).start()
            create = [*buildx, "create", "--name", name, "--driver", "remote", f"unix://{path}"]
            subprocess.run(create, check=True, capture_output=True, env=dict(os.environ))
            try:
                yield name
            finally:
                subprocess.run([*buildx, "rm", name], capture_output=True, env=dict(os.environ))
                with suppress(OSError):
                    relay.cut()
