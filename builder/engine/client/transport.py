"""HTTP to an engine by hand: over its unix socket, TCP, TLS, or through ssh.

Importing `http.client` costs 20 ms more than this and docker's SDK 110 ms, of the 150 that ``builder list`` may take.
The SDK's time limits are also for one read and not for the whole, and for ssh it wants paramiko.
HTTP/1.0 keeps it simple: the answer is neither chunked nor is the connection kept, so it ends where the stream does.
"""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from builder.engine.client import ssh
from builder.engine.client.errors import not_an_engine_error, timeout_error, unreachable_error
from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint

_CHUNK = 1 << 18
_SSH_WAIT = 2.0
_PORT, _TLS_PORT = 2375, 2376


def exchange(
    endpoint: Endpoint, method: str, target: str, sent: bytes, headers: Mapping[str, str], timeout: float
) -> tuple[int, bytes]:
    """The status and the body that the engine answers, within ``timeout`` seconds for the whole of it."""
    request = _request(method, target, sent, headers)
    try:
        with _connected(endpoint, timeout) as (connection, complaint):
            answer = _ask(endpoint, connection, request, timeout)
            if not answer:
                raise not_an_engine_error(endpoint, complaint())
    except OSError as error:
        raise unreachable_error(endpoint, error) from None
    head, body = _split(answer)
    return _status(endpoint, head), body


def open_stream(
    endpoint: Endpoint,
    target: str,
    timeout: float,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    idle: float | None = None,
) -> Iterator[tuple[int, bytes]]:
    """The status that the engine answers within ``timeout`` seconds, with each piece of the body as it comes, for as
    long as the engine goes on and is not silent for ``idle`` seconds. Leaving early ends what the engine does."""
    try:
        with _connected(endpoint, timeout) as (connection, complaint):
            connection.settimeout(timeout)
            connection.sendall(_request(method, target, b"", headers or {}))
            begun = b""
            while b"\r\n\r\n" not in begun and (piece := connection.recv(_CHUNK)):
                begun += piece
            if not begun:
                raise not_an_engine_error(endpoint, complaint())
            head, piece = _split(begun)
            status = _status(endpoint, head)
            connection.settimeout(idle)
            yield status, piece
            while piece := connection.recv(_CHUNK):
                yield status, piece
    except TimeoutError:
        raise timeout_error(endpoint, timeout if idle is None else idle) from None
    except OSError as error:
        raise unreachable_error(endpoint, error) from None


def upload(
    endpoint: Endpoint, target: str, size: int, pieces: Iterable[bytes], kind: str, idle: float
) -> tuple[int, bytes]:
    """The status and the body that the engine answers to a POST of ``size`` bytes of the media type ``kind``. It may be
    busy with what it has for ``idle`` seconds. What ``pieces`` raise, which is no
    OSError, ends it: the engine then has a part of them."""
    request = _request("POST", target, b"", {"Content-Type": kind, "Content-Length": str(size)})
    try:
        with _connected(endpoint, idle) as (connection, complaint):
            connection.settimeout(idle)
            with suppress(ConnectionResetError, BrokenPipeError):  # it has heard enough, and says why
                connection.sendall(request)
                for piece in pieces:
                    connection.sendall(piece)
            answer = b""
            with suppress(ConnectionResetError):
                while piece := connection.recv(_CHUNK):
                    answer += piece
            if not answer:
                raise not_an_engine_error(endpoint, complaint())
    except TimeoutError:
        raise timeout_error(endpoint, idle) from None
    except OSError as error:
        raise unreachable_error(endpoint, error) from None
    head, body = _split(answer)
    return _status(endpoint, head), body


def _status(endpoint: Endpoint, head: bytes) -> int:
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise not_an_engine_error(endpoint)
    return int(words[1])


@contextmanager
def _connected(endpoint: Endpoint, timeout: float) -> Iterator[tuple[socket.socket, Callable[[], str]]]:
    """A connection, and what the way to the engine complains of where nothing comes back."""
    if endpoint.host.startswith("ssh://"):
        with _through_ssh(endpoint) as found:
            yield found
    else:
        with _connect(endpoint, timeout) as connection:
            yield connection, str


def _connect(endpoint: Endpoint, timeout: float) -> socket.socket:
    if endpoint.host.startswith("unix://"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        try:
            connection.connect(endpoint.host.removeprefix("unix://"))
        except OSError:
            connection.close()
            raise
        return connection
    from urllib.parse import urlsplit

    place = urlsplit(endpoint.host)
    if place.scheme != "tcp" or not place.hostname:
        raise EngineError(
            f"{endpoint.host} (from {endpoint.origin}) is no address of an engine",
            hint="an address is unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST",
        )
    port = place.port or (_TLS_PORT if endpoint.tls else _PORT)
    connection = socket.create_connection((place.hostname, port), timeout=timeout)
    return _secured(endpoint, connection, place.hostname) if endpoint.tls else connection


def _secured(endpoint: Endpoint, connection: socket.socket, name: str) -> socket.socket:
    """TLS with the files that docker keeps: ca.pem, and cert.pem and key.pem to be known by."""
    import ssl
    from pathlib import Path

    folder = Path(endpoint.tls)
    try:
        authority = folder / "ca.pem"
        context = ssl.create_default_context(cafile=authority if authority.exists() else None)
        if not endpoint.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if (folder / "cert.pem").exists():
            context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        return context.wrap_socket(connection, server_hostname=name)
    except OSError:
        connection.close()
        raise


def _request(method: str, target: str, sent: bytes, headers: Mapping[str, str]) -> bytes:
    head = f"{method} {target} HTTP/1.0\r\nHost: docker\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if sent:
        head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n"
    return head.encode() + b"\r\n" + sent


def _ask(endpoint: Endpoint, connection: socket.socket, asked: bytes, timeout: float) -> bytes:
    deadline = time.monotonic() + timeout
    pieces: list[bytes] = []
    try:
        connection.settimeout(timeout)
        connection.sendall(asked)
        while piece := connection.recv(_CHUNK):
            pieces.append(piece)
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
    except TimeoutError:
        raise timeout_error(endpoint, timeout, _split(b"".join(pieces))[1]) from None
    except (ConnectionResetError, BrokenPipeError):
        # Whether it is enough is seen from what did arrive.
        pass
    return b"".join(pieces)


def _split(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


@contextmanager
def _through_ssh(endpoint: Endpoint) -> Iterator[tuple[socket.socket, Callable[[], str]]]:
    """A connection to the engine of another machine, made as the docker command makes it; and what ssh complains of."""
    import subprocess

    argv = ssh.argv(endpoint.host, ["-T"], ["docker system dial-stdio"])
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE)

        def complaint() -> str:
            try:
                said: bytes = process.communicate(timeout=_SSH_WAIT)[1]
            except subprocess.TimeoutExpired:
                return ""
            return said.decode(errors="replace").strip()

        with process:
            try:
                yield ours, complaint
            finally:
                process.kill()
