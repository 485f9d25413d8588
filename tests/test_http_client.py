"""Limits and failures of requests to real servers: slow servers, large answers, and no server."""

from __future__ import annotations

import gzip
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from builder.base import http_client
from builder.base.http_client import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


CONTENT = b"x" * 5000


class _Handler(BaseHTTPRequestHandler):
    """/slow sends a byte every 20 ms without end, /away redirects to a file of this machine, the rest is CONTENT."""

    def do_GET(self) -> None:
        self.send_response(302 if self.path == "/away" else 200)
        if self.path == "/away":
            self.send_header("Location", "file:///etc/hostname")
            self.end_headers()
            return
        if self.path == "/slow":
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b".")
                    time.sleep(0.02)
            except OSError:
                return
        self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(gzip.compress(CONTENT))

    def log_message(self, *_: object) -> None:
        """Prints nothing: an access log would disturb the output of tests."""


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fetched(url: str, *, largest: int = 1 << 20, seconds: float = 120.0, ca_file: Path | None = None) -> bytes:
    with http_client.following(ca_file) as client:
        answer = http_client.send(client, "GET", url, largest=largest, seconds=seconds)
        assert http_client.status(answer) == "200 OK"
        return answer.content


def test_an_answer_is_unpacked_and_limited_in_size() -> None:
    with serving() as url:
        assert fetched(url, largest=len(CONTENT)) == CONTENT
        with pytest.raises(NoAnswerError, match="more than 4,999 bytes") as caught:
            fetched(url, largest=len(CONTENT) - 1)
    assert not caught.value.transient


def test_a_failure_is_told_without_the_number_of_the_system() -> None:
    assert http_client.reason(OSError(-2, "Name or service not known")) == "Name or service not known"
    assert http_client.reason(TimeoutError()) == "TimeoutError"


@pytest.mark.slow
def test_a_server_that_sends_a_byte_at_a_time_is_left_after_the_time_for_the_whole_answer() -> None:
    with serving() as url, pytest.raises(NoAnswerError, match=r"did not finish its answer within 0\.3 s") as caught:
        fetched(f"{url}/slow", seconds=0.3)
    assert caught.value.transient


def test_only_a_failure_of_the_network_may_pass(tmp_path: Path) -> None:
    with serving() as url:
        with pytest.raises(NoAnswerError) as caught:
            fetched(f"{url}/away")
        assert not caught.value.transient
        for content, kind in (("no certificates", "PEM|CERTIFICATE|certificate|SSL"), (None, "No such file")):
            ca_file = tmp_path / "ca.crt"
            ca_file.unlink(missing_ok=True)
            if content:
                ca_file.write_text(content)
            with pytest.raises(NoAnswerError, match=kind) as caught:
                fetched(url, ca_file=ca_file)
            assert not caught.value.transient
    with pytest.raises(NoAnswerError, match="refused") as caught:
        fetched(url)
    assert caught.value.transient
    with pytest.raises(NoAnswerError) as caught:
        fetched("http://127.0.0.1:many/")
    assert not caught.value.transient


def test_no_proxy_leads_to_a_server_that_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving() as url, serving() as proxy:
        dead = proxy.rpartition(":")[0] + ":9"
        monkeypatch.setenv("HTTP_PROXY", dead)
        monkeypatch.setenv("http_proxy", dead)
        with pytest.raises(NoAnswerError):
            fetched(url)
        with http_client.near(120.0, {}) as client:
            assert http_client.send(client, "GET", url, largest=1 << 20).content == CONTENT
