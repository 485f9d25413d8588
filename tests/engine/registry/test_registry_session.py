"""A conversation with a registry: a real one, and servers that ask for a token or lead elsewhere."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from builder.engine.client.endpoint import Endpoint
from builder.engine.registry import registry_session
from builder.errors import TransferError
from tests import projects, registries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx2

pytestmark = pytest.mark.engine

SCOPE = "repository:a/b:pull"
LOGIN = base64.b64encode(b"tester:secret").decode()


def asked(endpoint: Endpoint, repository: str) -> httpx2.Response:
    """The registry's answer to a request for the tags of ``repository``."""
    with registry_session.opened(endpoint, repository, "the request failed") as session:
        return session.send("GET", f"{session.address}/v2/{session.path}/tags/list", largest=1 << 20)


def test_a_registry_that_wants_a_login_gets_dockers_own(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registries.registry(tmp_path / "registry", users=registries.HTPASSWD) as closed:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        projects.write(tmp_path / "config.json", "{}")
        assert asked(endpoint, f"{closed.address}/none").status_code == 401
        projects.write(tmp_path / "config.json", json.dumps({"auths": {closed.address: {"auth": LOGIN}}}))
        assert asked(endpoint, f"{closed.address}/none").status_code == 404


@contextmanager
def serving(answer: Callable[[str, str, str], tuple[int, dict[str, str], bytes]]) -> Iterator[str]:
    """Runs a server whose ``answer`` gets the path, the Authorization and the Host of each request."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            status, headers, body = answer(self.path, self.headers.get("Authorization", ""), self.headers["Host"])
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def wants_token(path: str, authorization: str, host: str) -> tuple[int, dict[str, str], bytes]:
    """Answers as a registry that requires a bearer token, and has one for the user tester."""
    place = urlsplit(path)
    query = parse_qs(place.query)
    if place.path == "/token":
        body = {"token": query["scope"][0]} if authorization == f"Basic {LOGIN}" else {}
        return 200, {}, json.dumps(body).encode()
    if authorization != f"Bearer {SCOPE}":
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{host}/token",service="s",scope="{SCOPE}"'}, b"{}"
    return 200, {}, b'{"tags": ["1", "2"]}'


def test_a_token_is_fetched_with_the_login(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with serving(wants_token) as address:
        projects.write(tmp_path / "config.json", "{}")
        with pytest.raises(TransferError, match="gave no token"):
            asked(endpoint, f"{address}/a/b")
        projects.write(tmp_path / "config.json", json.dumps({"auths": {address: {"auth": LOGIN}}}))
        assert asked(endpoint, f"{address}/a/b").json() == {"tags": ["1", "2"]}


def test_an_answer_of_a_token_server_without_an_end_is_not_read(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(path: str, authorization: str, host: str) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = wants_token(path, authorization, host)
        return status, headers, b" " * (2 << 20) if path.startswith("/token") else body

    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    projects.write(tmp_path / "config.json", "{}")
    with serving(answers) as address, pytest.raises(TransferError, match="the answer has more than 65,536 bytes"):
        asked(endpoint, f"{address}/a/b")


def test_the_login_goes_to_no_other_server(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that says that what it has moved is on another host: that one would get the login."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    received: list[str] = []

    def eavesdrop(_path: str, authorization: str, _host: str) -> tuple[int, dict[str, str], bytes]:
        received.append(authorization)
        return 200, {}, b'{"tags": ["666"]}'

    with serving(eavesdrop) as elsewhere:

        def answer(path: str, authorization: str, _host: str) -> tuple[int, dict[str, str], bytes]:
            if not authorization:
                return 401, {"WWW-Authenticate": "Basic realm=x"}, b"{}"
            return 302, {"Location": f"http://{elsewhere}{path}"}, b""

        with serving(answer) as address:
            projects.write(tmp_path / "config.json", json.dumps({"auths": {address: {"auth": LOGIN}}}))
            asked(endpoint, f"{address}/moved/b")
    assert received == [""]
