"""An HTTP server for tests with a few files, which can be made to change, fail and redirect."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Web:
    """A server at ``url`` with ``files`` by path. It answers the next ``busy`` requests with 503, and a path without a
    file with ``absent``. ``redirects`` map a path to an address. ``requests`` are the requested paths."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    busy: int = 0
    absent: int = 404
    redirects: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


@contextmanager
def serving() -> Iterator[Web]:
    """Serves on a free port of this machine until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            web.requests.append(path)
            if web.busy:
                web.busy -= 1
                self._answer(503, b"")
            elif path in web.redirects:
                self._answer(302, b"", Location=web.redirects[path])
            elif path in web.files:
                self._answer(200, web.files[path])
            else:
                self._answer(web.absent, b"")

        def _answer(self, status: int, content: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Prints nothing: an access log would disturb the output of tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web = Web(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
