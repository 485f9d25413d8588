"""A registry that receives one push: the engine sends it the blobs of an image, without those that it claims to have.

The engine's own export (`GET /images/NAME/get`) sends all of them in turn: five times as slow for a whole image.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#push
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from builder.engine.registry.oci_layout import Descriptor

_CHUNK = 1 << 20
_LARGEST_MANIFEST = 16 << 20
_TLS_GREETING = b"\x16"
_GREETING_WAIT = 2.0

HasBlob = Callable[[str], bool]
"""True if the blob of this digest need not be sent."""
ReceiveBlob = Callable[[str, int, Iterator[bytes]], None]
"""Takes a blob: its digest, its size in bytes, and its content. Raises ValueError or OSError if that is incomplete."""


class PushReceiver:
    """The manifests of a push. ``port`` is on 127.0.0.1; ``errors`` holds the errors of blobs that were refused."""

    def __init__(self) -> None:
        self.port = 0
        self.manifests: dict[str, bytes] = {}
        self.top: Descriptor | None = None
        self.errors: list[Exception] = []

    def get(self, digest: str) -> bytes:
        """Returns a manifest that was pushed. Raises ValueError where it was not."""
        if digest not in self.manifests:
            raise ValueError(f"the engine did not hand over {digest}")
        return self.manifests[digest]


@dataclass(frozen=True)
class _Push:
    has_blob: HasBlob
    receive: ReceiveBlob
    receiver: PushReceiver


@contextmanager
def serving(has_blob: HasBlob, receive: ReceiveBlob) -> Iterator[PushReceiver]:
    """Serves a push during the block: ``receive`` gets the blobs that the receiver does not have, from several threads
    at once."""
    receiver = PushReceiver()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, _Push(has_blob, receive, receiver)))
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


class _BrokenOffError(ValueError):
    """A blob that the engine did not send to its end."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, push: _Push, *arguments: Any) -> None:
        self._push = push
        super().__init__(*arguments)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""

    def handle(self) -> None:
        # An engine tries TLS first, and goes on without it after an answer in HTTP. Its greeting contains no line
        # break, for which the parser of requests would wait.
        if self.connection.recv(1, socket.MSG_PEEK) != _TLS_GREETING:
            super().handle()
            return
        with suppress(OSError):
            self.connection.settimeout(_GREETING_WAIT)
            self.wfile.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            self.connection.shutdown(socket.SHUT_WR)
            # Closing a connection with unread data resets it, and the answer is lost.
            while self.connection.recv(_CHUNK):
                pass

    def do_GET(self) -> None:
        self._answer(200 if self.path.rstrip("/") == "/v2" else 404)

    def do_HEAD(self) -> None:
        kind, _, digest = self.path.rpartition("/")
        self._answer(200 if kind.endswith("/blobs") and self._push.has_blob(digest) else 404, digest)

    def do_POST(self) -> None:
        if not urlsplit(self.path).path.endswith("/blobs/uploads/"):
            self._answer(404)
            return
        self._answer(202, location=f"{urlsplit(self.path).path}1")

    def do_PUT(self) -> None:
        """Receives a whole blob, or a manifest."""
        url = urlsplit(self.path)
        kind, _, last = url.path.rpartition("/")
        length = self.headers.get("Content-Length") or ""
        self.close_connection = True  # after an error, the rest of the body is not taken for a request
        if not length.isdecimal():
            self._answer(411)
        elif kind.endswith("/manifests") and int(length) <= _LARGEST_MANIFEST:
            self._manifest(last, b"".join(self._body(int(length))))
        elif kind.endswith("/blobs/uploads"):
            self._blob(parse_qs(url.query).get("digest", [""])[0], int(length))
        else:
            self._answer(404)

    def _manifest(self, reference: str, content: bytes) -> None:
        digest = f"sha256:{sha256(content).hexdigest()}"
        receiver = self._push.receiver
        receiver.manifests[digest] = content
        if not reference.startswith("sha256:"):
            receiver.top = Descriptor(self.headers.get("Content-Type") or "", digest, len(content))
        self._created(digest)

    def _blob(self, digest: str, size: int) -> None:
        try:
            self._push.receive(digest, size, self._body(size))
        except _BrokenOffError:
            self._answer(500)  # the engine reports the cause itself
        except (OSError, ValueError) as error:
            self._push.receiver.errors.append(error)
            self._answer(500)
        else:
            self._created(digest, self.path)

    def _body(self, remaining: int) -> Iterator[bytes]:
        while remaining:
            try:
                piece = self.rfile.read(min(remaining, _CHUNK))
            except OSError:
                piece = b""
            if not piece:
                raise _BrokenOffError("the engine stopped in the middle of a blob")
            remaining -= len(piece)
            yield piece

    def _created(self, digest: str, location: str = "") -> None:
        """Answers 201 after all of the body was read, and keeps the connection: Go closes its own side when it sees the
        end, and if it is still waiting for the end of its upload then, its request fails in spite of the answer."""
        self.close_connection = False
        self._answer(201, digest, location)

    def _answer(self, status: int, digest: str = "", location: str = "") -> None:
        with suppress(OSError):  # the engine has closed the connection
            self.send_response(status)
            self.send_header("Content-Length", "0")
            if digest:
                self.send_header("Docker-Content-Digest", digest)
            if location:
                self.send_header("Location", location)
            self.end_headers()
