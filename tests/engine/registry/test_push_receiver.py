"""The registry that receives one push: an engine's requests, and content that does not match."""

from __future__ import annotations

import http.client
import socket
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from builder.engine.registry import push_receiver
from builder.engine.registry.push_receiver import PushReceiver

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT = b"a layer" * 1000
DIGEST = f"sha256:{sha256(CONTENT).hexdigest()}"
KNOWN = f"sha256:{'0' * 64}"


@pytest.fixture
def taken() -> dict[str, bytes]:
    return {}


@pytest.fixture
def receiver(taken: dict[str, bytes]) -> Iterator[PushReceiver]:
    def take(digest: str, size: int, pieces: Iterator[bytes]) -> None:
        content = b"".join(pieces)
        if f"sha256:{sha256(content).hexdigest()}" != digest:
            raise ValueError(f"{digest} is another")
        assert len(content) == size
        taken[digest] = content

    with push_receiver.serving(KNOWN.__eq__, take) as receiver:
        yield receiver


def ask(receiver: PushReceiver, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=10)
    try:
        connection.request(method, path, body=body, headers={name.replace("_", "-"): h for name, h in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Location") or ""
    finally:
        connection.close()


def test_a_push_as_the_specification_has_it(receiver: PushReceiver, taken: dict[str, bytes]) -> None:
    assert ask(receiver, "GET", "/v2/")[0] == 200
    assert ask(receiver, "HEAD", f"/v2/a/b/blobs/{KNOWN}")[0] == 200
    assert ask(receiver, "HEAD", f"/v2/a/b/blobs/{DIGEST}")[0] == 404
    status, place = ask(receiver, "POST", f"/v2/a/b/blobs/uploads/?mount={DIGEST}&from=c")
    assert status == 202
    assert ask(receiver, "PUT", f"{place}?digest={DIGEST.replace(':', '%3A')}", CONTENT)[0] == 201
    assert taken == {DIGEST: CONTENT}
    assert ask(receiver, "HEAD", "/v2/a/b/manifests/7")[0] == 404
    assert ask(receiver, "PUT", "/v2/a/b/manifests/7", b"{}", Content_Type="application/x")[0] == 201
    assert receiver.top is not None
    assert (receiver.top.media_type, receiver.get(receiver.top.digest)) == ("application/x", b"{}")
    with pytest.raises(ValueError, match="did not hand over"):
        receiver.get(KNOWN)


def test_the_connection_stays_after_what_was_taken(receiver: PushReceiver) -> None:
    """Go fails a request if the connection closes before the end of its own upload."""
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=10)
    try:
        for path in (f"/v2/a/blobs/uploads/1?digest={DIGEST}", "/v2/a/manifests/7"):
            connection.request("PUT", path, body=CONTENT)
            answer = connection.getresponse()
            assert (answer.status, answer.will_close, answer.read()) == (201, False, b"")
            assert connection.sock is not None
            connection.sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.sock.recv(1)
            connection.sock.settimeout(10)
    finally:
        connection.close()


def test_a_blob_that_is_not_taken_fails_the_push(receiver: PushReceiver) -> None:
    assert ask(receiver, "PUT", f"/v2/a/blobs/uploads/1?digest={DIGEST}", b"other")[0] == 500
    assert [str(error) for error in receiver.errors] == [f"{DIGEST} is another"]


def test_a_blob_that_breaks_off_fails_the_push(receiver: PushReceiver, taken: dict[str, bytes]) -> None:
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=10) as connection:
        head = f"PUT /v2/a/blobs/uploads/1?digest={DIGEST} HTTP/1.1\r\nContent-Length: 99\r\n\r\n"
        connection.sendall(head.encode() + b"half")
        connection.shutdown(socket.SHUT_WR)
        assert b" 500 " in connection.recv(1000)
    assert taken == {}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", f"/v2/a/blobs/{KNOWN}", 404),
        ("POST", "/v2/a/blobs/", 404),
        ("PUT", "/v2/a/blobs/other", 404),
        ("PATCH", "/v2/a/blobs/uploads/1", 501),
    ],
)
def test_anything_else_is_refused(receiver: PushReceiver, method: str, path: str, status: int) -> None:
    assert ask(receiver, method, path, b"x" if method == "PUT" else None)[0] == status


def test_a_blob_of_unknown_length_is_refused(receiver: PushReceiver) -> None:
    status = ask(receiver, "PUT", f"/v2/a/blobs/uploads/1?digest={DIGEST}", None, Content_Length="many")[0]
    assert status == 411


def test_a_greeting_of_tls_is_answered_at_once(receiver: PushReceiver) -> None:
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=10) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01")
        answer = b"".join(iter(lambda: connection.recv(100), b""))
        assert answer.startswith(b"HTTP/1.0 400")
