"""A forward proxy. Build steps use it to reach the package indexes from an engine whose bridge has no connection."""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 16
_HEAD = 1 << 16  # the most bytes of a request's head


class _Handler(socketserver.StreamRequestHandler):
    """One request: a tunnel (CONNECT), or plain HTTP, with a separate connection for each request."""

    timeout = 120

    def handle(self) -> None:
        with suppress(OSError, ValueError):
            method, target, version = self.rfile.readline(_HEAD).decode().split()
            lines = list(iter(lambda: self.rfile.readline(_HEAD), b"\r\n"))
            place = urlsplit(f"//{target}" if method == "CONNECT" else target)
            with socket.create_connection((place.hostname, place.port or 80), timeout=60) as far:
                far.settimeout(None)
                if method == "CONNECT":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    path = place._replace(scheme="", netloc="").geturl() or "/"
                    kept = [
                        line for line in lines if not line.lower().startswith((b"connection:", b"proxy-connection:"))
                    ]
                    head = f"{method} {path} {version}\r\nConnection: close\r\n".encode()
                    far.sendall(head + b"".join(kept) + b"\r\n")
                self._pass_on(far)

    def _pass_on(self, far: socket.socket) -> None:
        def out() -> None:
            with suppress(OSError, ValueError):  # ValueError: the file was closed
                while data := self.rfile.read1(_CHUNK):
                    far.sendall(data)

        threading.Thread(target=out, daemon=True).start()
        while data := far.recv(_CHUNK):
            self.wfile.write(data)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def running(host: str) -> Iterator[dict[str, str]]:
    """Runs a proxy at ``host``, an address of this machine, during the block. Yields the variables that select it."""
    with _Server((host, 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://{host}:{server.server_address[1]}"
        try:
            yield {"HTTP_PROXY": address, "HTTPS_PROXY": address, "NO_PROXY": "127.0.0.1,localhost"}
        finally:
            server.shutdown()
