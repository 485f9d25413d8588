"""Requests to an engine: errors, against small servers on real sockets, and all connections to the real one."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import EngineError
from builder.engine import client
from builder.engine.client import Endpoint
from tests import processes

if TYPE_CHECKING:
    from pathlib import Path


Serve = Callable[[socket.socket], None]


@contextmanager
def serving(path: Path, serve: Serve) -> Iterator[Endpoint]:
    """Runs a server that accepts one connection after the other and passes it to ``serve``."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                serve(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield Endpoint(f"unix://{path}", ("docker", "buildx"), "a test")
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(timeout=5)


def answering(answer: bytes, requests: list[bytes] | None = None) -> Serve:
    def serve(connection: socket.socket) -> None:
        data = connection.recv(65536)
        length = re.search(rb"Content-Length: (\d+)", data)
        while length and len(data.partition(b"\r\n\r\n")[2]) < int(length[1]):
            data += connection.recv(65536)
        if requests is not None:
            requests.append(data)
        connection.sendall(answer)

    return serve


def test_a_request_as_it_is_sent(tmp_path: Path) -> None:
    requests: list[bytes] = []
    with serving(tmp_path / "s", answering(b'HTTP/1.0 200 OK\r\nX: y\r\n\r\n{"a": [1]}\n', requests)) as endpoint:
        answer = client.request(endpoint, "POST", "/x/json", query={"all": 1, "filters": '{"a b"}'}, body={"k": "ü"})
    assert answer == {"a": [1]}
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /x/json?all=1&filters=%7B%22a+b%22%7D HTTP/1.0"
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {"k": "ü"}


def test_an_answer_without_a_body(tmp_path: Path) -> None:
    with serving(tmp_path / "s", answering(b"HTTP/1.0 204 No Content\r\n\r\n")) as endpoint:
        assert client.request(endpoint, "DELETE", "/x") == {}


@pytest.mark.parametrize("body", [b"", b"\n", b'[{"Id": "sha2'])
def test_an_answer_that_was_cut_off_is_no_empty_list(tmp_path: Path, body: bytes) -> None:
    with (
        serving(tmp_path / "s", answering(b"HTTP/1.0 200 OK\r\n\r\n" + body)) as endpoint,
        pytest.raises(EngineError, match="GET /volumes with incomplete"),
    ):
        client.request(endpoint, "GET", "/volumes")


@pytest.mark.parametrize("body", ["null", "[]", "[{}]", "1", '"text"', "[" * 100_000])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_answer_that_is_no_object(tmp_path: Path, method: str, body: str) -> None:
    with (
        serving(tmp_path / "s", answering(f"HTTP/1.0 200 OK\r\n\r\n{body}".encode())) as endpoint,
        pytest.raises(EngineError, match=rf"answered {method} /x with incomplete or invalid JSON"),
    ):
        client.request(endpoint, method, "/x")


@pytest.mark.parametrize("body", ["{}", "[null]", '[{}, "a"]', "1"])
def test_an_answer_that_is_no_list_of_objects(tmp_path: Path, body: str) -> None:
    with (
        serving(tmp_path / "s", answering(f"HTTP/1.0 200 OK\r\n\r\n{body}".encode())) as endpoint,
        pytest.raises(EngineError, match="answered GET /x with incomplete or invalid JSON"),
    ):
        client.listed(endpoint, "/x")


@pytest.mark.parametrize("body", ["null", "[]"])
def test_an_empty_list(tmp_path: Path, body: str) -> None:
    with serving(tmp_path / "s", answering(f"HTTP/1.0 200 OK\r\n\r\n{body}".encode())) as endpoint:
        assert client.listed(endpoint, "/x") == []


def test_an_answer_without_a_key(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "s", answering(b"HTTP/1.0 200 OK\r\n\r\n{}")) as endpoint,
        pytest.raises(EngineError, match="the engine's answer has no `Id`"),
    ):
        _ = client.request(endpoint, "GET", "/x")["Id"]


@pytest.mark.parametrize("line", ["null", "[1]", "1", "{"])
def test_a_line_that_is_no_object(line: str) -> None:
    lines = client.objects([b'{"a": 1}\n', f"{line}\n".encode()])
    with pytest.raises(EngineError, match="the engine's answer ended early"):
        list(lines)


def test_a_refusal_carries_the_engines_words(tmp_path: Path) -> None:
    answer = b'HTTP/1.0 404 Not Found\r\n\r\n{"message":"No such image: x"}\n'
    with serving(tmp_path / "s", answering(answer)) as endpoint, pytest.raises(client.EngineHTTPError) as caught:
        client.request(endpoint, "GET", "/images/x/json")
    assert isinstance(caught.value, client.EngineMissingError)
    assert caught.value.explanation == "No such image: x"
    assert caught.value.exit_code == 5


@pytest.mark.slow
def test_what_the_engine_wants_again_is_sent_again(tmp_path: Path) -> None:
    message = b'{"message":"consistency error: data changed during operation, retry"}'
    answers = [b"HTTP/1.0 500 Oops\r\n\r\n" + message] * 2 + [b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}']

    def serve(connection: socket.socket) -> None:
        answering(answers.pop(0))(connection)

    with serving(tmp_path / "s", serve) as endpoint:
        assert client.request(endpoint, "DELETE", "/containers/x") == {"a": 1}
    assert not answers


@pytest.mark.parametrize(
    ("body", "explanation"), [(b"plain text", "plain text"), (b"", "status 500 for GET /x"), (b"[]", "500")]
)
def test_a_refusal_in_another_form(tmp_path: Path, body: bytes, explanation: str) -> None:
    answer = b"HTTP/1.0 500 Oops\r\n\r\n" + body
    with (
        serving(tmp_path / "s", answering(answer)) as endpoint,
        pytest.raises(client.EngineHTTPError, match=explanation),
    ):
        client.request(endpoint, "GET", "/x")


def test_no_socket(tmp_path: Path) -> None:
    endpoint = Endpoint(f"unix://{tmp_path}/none", ("docker", "buildx"), "DOCKER_HOST")
    with pytest.raises(
        EngineError, match=r"no Docker engine answers at .* \(from DOCKER_HOST\): No such file"
    ) as caught:
        client.request(endpoint, "GET", "/_ping")
    assert "scripts/engine up" in caught.value.hint


def test_a_socket_whose_engine_is_gone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    with pytest.raises(EngineError, match="Connection refused"):
        client.request(Endpoint(f"unix://{tmp_path}/s", (), "a test"), "GET", "/_ping")


def test_no_permission_says_what_to_do() -> None:
    error = client.unreachable_error(Endpoint("unix:///x", (), "a test"), PermissionError(13, "Permission denied"))
    assert "no permission" in error.message
    assert "usermod -aG docker" in error.hint


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.0\r\n\r\n", b"HTTP/1.0 abc\r\n\r\n"])
def test_something_else_answers(tmp_path: Path, answer: bytes) -> None:
    message = "the server at .* is not a Docker engine" if answer else "no Docker engine answers at"
    with serving(tmp_path / "s", answering(answer)) as endpoint, pytest.raises(EngineError, match=message):
        client.request(endpoint, "GET", "/_ping")


def test_an_answer_that_breaks_off(tmp_path: Path) -> None:
    answer = b'HTTP/1.0 200 OK\r\n\r\n[{"Id": "sha2'
    with serving(tmp_path / "s", answering(answer)) as endpoint, pytest.raises(EngineError, match="incomplete"):
        client.request(endpoint, "GET", "/images/json")


@pytest.mark.slow
def test_silence_ends(tmp_path: Path) -> None:
    silent = threading.Event()

    def say_nothing(_: socket.socket) -> None:
        silent.wait(600)

    with serving(tmp_path / "s", say_nothing) as endpoint:
        began = time.monotonic()
        with pytest.raises(client.EngineTimeoutError, match=r"0\.3 seconds"):
            client.request(endpoint, "GET", "/x", timeout=0.3)
        assert time.monotonic() - began < 120
        silent.set()


@pytest.mark.slow
def test_the_time_limit_is_for_the_whole_answer(tmp_path: Path) -> None:
    """An answer that always goes on is left at the limit, with what came until then."""

    def drip(connection: socket.socket) -> None:
        connection.recv(65536)
        with suppress(OSError):
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"x")
                time.sleep(0.05)

    with serving(tmp_path / "s", drip) as endpoint:
        for seconds in processes.GROWING:
            with pytest.raises(client.EngineTimeoutError, match=f"for {seconds} seconds") as caught:
                client.raw(endpoint, "GET", "/x", timeout=seconds)
            if len(caught.value.partial) >= 2:
                break
    assert set(caught.value.partial) == set(b"x")
    assert 2 <= len(caught.value.partial) <= seconds / 0.05 + 2


@pytest.mark.parametrize(
    ("reference", "path"),
    [
        ("a:1", "a:1"),
        ("localhost:5000/a/b:1", "localhost:5000/a/b:1"),
        ("a@sha256:0", "a@sha256:0"),
        ("a b?", "a%20b%3F"),
    ],
)
def test_a_reference_in_a_path(reference: str, path: str) -> None:
    assert client.quoted(reference) == path


def test_another_address_without_an_engine() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = Endpoint(f"tcp://127.0.0.1:{taken.getsockname()[1]}", (), "DOCKER_HOST")
        with pytest.raises(EngineError, match="no Docker engine answers at tcp://127"):
            client.request(endpoint, "GET", "/_ping", timeout=120)


@pytest.mark.engine
def test_the_real_engine(endpoint: Endpoint) -> None:
    assert client.raw(endpoint, "GET", "/_ping") == b"OK"
    assert "ApiVersion" in client.request(endpoint, "GET", "/version")
    with pytest.raises(client.EngineHTTPError) as caught:
        client.request(endpoint, "GET", "/images/builder-test-none:1/json")
    assert isinstance(caught.value, client.EngineMissingError)


@pytest.mark.engine
def test_the_real_engine_over_tcp(endpoint: Endpoint, tcp: str) -> None:
    remote = replace(endpoint, host=tcp)
    assert client.raw(remote, "GET", "/_ping") == b"OK"
    assert client.request(remote, "GET", "/version") == client.request(endpoint, "GET", "/version")
    with pytest.raises(client.EngineHTTPError, match="builder-test-none") as caught:
        client.request(remote, "GET", "/images/builder-test-none:1/json")
    assert isinstance(caught.value, client.EngineMissingError)


@pytest.mark.engine
def test_the_real_engine_over_ssh(endpoint: Endpoint, ssh: str) -> None:
    remote = replace(endpoint, host=ssh)
    assert client.request(remote, "GET", "/version") == client.request(endpoint, "GET", "/version")


def test_ssh_that_cannot_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ssh"
    program.write_text('#!/bin/sh\necho "$@" >&2\necho "Permission denied (publickey)." >&2\nexit 255\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    endpoint = Endpoint("ssh://me@spark:2222", (), "DOCKER_HOST")
    with pytest.raises(EngineError, match=r"Permission denied \(publickey\)") as caught:
        client.request(endpoint, "GET", "/_ping", timeout=120)
    assert "-T -l me -p 2222 -- spark docker system dial-stdio" in caught.value.message


def test_no_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="no Docker engine answers at ssh://spark"):
        client.request(Endpoint("ssh://spark", (), "DOCKER_HOST"), "GET", "/_ping", timeout=120)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with ca.pem, cert.pem and key.pem, for a server on 127.0.0.1 and for its client at once."""
    folder = tmp_path / "tls"
    folder.mkdir()
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)
    (folder / "ca.pem").write_bytes((folder / "cert.pem").read_bytes())
    return folder


@contextmanager
def serving_tls(folder: Path) -> Iterator[str]:
    """Runs a server that accepts only clients with a certificate, and answers each once."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(65536)
                    secured.sendall(b"HTTP/1.0 200 OK\r\n\r\nOK")

        threading.Thread(target=accept, daemon=True).start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def test_tls(certificates: Path) -> None:
    with serving_tls(certificates) as host:
        endpoint = Endpoint(host, (), "DOCKER_HOST", str(certificates))
        assert client.raw(endpoint, "GET", "/_ping", timeout=120) == b"OK"


@pytest.mark.slow
def test_tls_with_a_stranger(certificates: Path, tmp_path: Path) -> None:
    with serving_tls(certificates) as host:
        (tmp_path / "empty").mkdir()
        with pytest.raises(EngineError, match=r"certificate verify failed|CERTIFICATE_VERIFY_FAILED"):
            client.raw(Endpoint(host, (), "DOCKER_HOST", str(tmp_path / "empty")), "GET", "/_ping", timeout=120)
        careless = Endpoint(host, (), "DOCKER_HOST", str(certificates), tls_verify=False)
        assert client.raw(careless, "GET", "/_ping", timeout=120) == b"OK"


@pytest.mark.parametrize("host", ["npipe:////./pipe/docker", "http://x", "tcp://", "nonsense"])
def test_an_address_that_is_none(host: str) -> None:
    with pytest.raises(EngineError, match="is not the address of an engine"):
        client.request(Endpoint(host, (), "DOCKER_HOST"), "GET", "/_ping")


@pytest.mark.parametrize(
    "host", ["ssh://host:22:-oX", "ssh://[-oX]", "ssh://-oX", "ssh://", "tcp://[-oX]", "tcp://host:x"]
)
def test_an_address_that_is_none_is_an_error_and_no_option(host: str) -> None:
    with pytest.raises(EngineError, match="is not (an|the) address"):
        client.request(Endpoint(host, (), "DOCKER_HOST"), "GET", "/_ping", timeout=120)
