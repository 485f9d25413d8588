from __future__ import annotations

import base64
import subprocess
import threading
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import wheels
from tests.sources.wheelhouse import make_wheel, serving

if TYPE_CHECKING:
    from pathlib import Path


LOGIN = "Basic " + base64.b64encode(b"tester:secret").decode()


def test_files_are_read_by_one_connection_or_from_the_disk(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "toy", "1.0", files={"toy/a.py": "a\n"})
    with serving(tmp_path) as served:
        for address in (f"{served.url}/{made.name}", made.as_uri()):
            with wheels.open_wheel(address, None) as archive:
                assert archive.read("toy/a.py") == b"a\n"


def test_a_server_that_knows_no_ranges_is_not_asked_for_the_whole_wheel(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "toy", "1.0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/{made.name}"
    try:
        with (
            pytest.raises(SourceError, match="cannot be read: the server sends whole files only"),
            wheels.open_wheel(address, None),
        ):
            pass
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_sends_more_than_the_range_is_not_read_on(tmp_path: Path) -> None:
    class Endless(SimpleHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(206)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"0" * 65536)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/toy.whl"
        with (
            pytest.raises(SourceError, match="the answer has more than [0-9,]+ bytes"),
            wheels.open_wheel(address, None),
        ):
            pass
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("length", [None, "many"])
def test_a_server_that_does_not_tell_the_size(tmp_path: Path, length: str | None) -> None:
    class Chunked(SimpleHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            if length:
                self.send_header("Content-Length", length)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Chunked)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/toy.whl"
        with pytest.raises(SourceError, match="toy.whl cannot be read: "), wheels.open_wheel(address, None):
            pass
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        gone = f"{served.url}/toy.whl"
    message = r"the wheel http://127\.0\.0\.1:\d+/toy\.whl cannot be read: .*refused"
    with pytest.raises(SourceError, match=message), wheels.open_wheel(gone, None):
        pass


def test_a_login_comes_from_the_address_or_from_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv reads the same file."""
    logins: list[str | None] = []

    class Closed(SimpleHTTPRequestHandler):
        def do_HEAD(self) -> None:
            logins.append(self.headers["Authorization"])
            self.send_error(401)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Closed)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    host = f"127.0.0.1:{server.server_port}"
    try:
        for content, address in (
            ("", f"http://{host}/a.whl"),
            ("machine 127.0.0.1 login tester password secret\n", f"http://{host}/a.whl"),
            ("machine 127.0.0.1 login other password other\n", f"http://tester:secret@{host}/a.whl"),
            ("no netrc at all", f"http://{host}/a.whl"),
        ):
            netrc.write_text(content)
            with pytest.raises(SourceError, match="401"), wheels.open_wheel(address, None):
                pass
    finally:
        server.shutdown()
        server.server_close()
    assert logins == [None, LOGIN, LOGIN, None]


def test_a_server_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    """The file that uv is given as SSL_CERT_FILE is what the server is checked with."""
    made = make_wheel(tmp_path, "toy", "1.0", files={"toy/a.py": "a\n"})
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *options, *subject], check=True, capture_output=True)
    with serving(tmp_path, tls=(certificate, key)) as served:
        address = f"{served.url}/{made.name}"
        with wheels.open_wheel(address, certificate) as archive:
            assert archive.read("toy/a.py") == b"a\n"
        with pytest.raises(SourceError, match="(?i)certificate"), wheels.open_wheel(address, None):
            pass
