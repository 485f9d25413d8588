"""HTTP requests to an engine, written by hand.

Importing `http.client` costs 20 ms more than this and docker's SDK 110 ms, of the 150 that ``builder list`` may take.
The SDK's time limits are also for one read and not for the whole, and for ssh it wants paramiko.
HTTP/1.0 keeps it simple: the response is not chunked and the connection is not kept, so that its end ends the body.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from builder.engine.client.connection import connected
from builder.engine.client.errors import (
    EngineAnswerTooLargeError,
    not_an_engine_error,
    timeout_error,
    unreachable_error,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint

_CHUNK = 1 << 18


def exchange(
    endpoint: Endpoint,
    method: str,
    target: str,
    body: bytes,
    headers: Mapping[str, str],
    timeout: float,
    largest: int | None = None,
) -> tuple[int, bytes]:
    """Sends a request; returns status and body of the response, all within ``timeout`` seconds. Raises
    EngineAnswerTooLargeError for a response of more than ``largest`` bytes."""
    request = _request(method, target, body, headers)
    try:
        with connected(endpoint, timeout) as (connection, error_output):
            response = _send_and_receive(endpoint, connection, request, timeout, largest)
            if not response:
                raise not_an_engine_error(endpoint, error_output())
    except OSError as error:
        raise unreachable_error(endpoint, error) from None
    return _parse(endpoint, response)


def open_stream(
    endpoint: Endpoint,
    target: str,
    timeout: float,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    idle: float | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yields the status of the response with each piece of its body, until the engine ends it.

    The status has to come within ``timeout`` seconds; after that the engine may be silent for ``idle`` seconds, without
    a limit where that is None. Closing the generator closes the connection, which ends what the engine does.
    """
    try:
        with connected(endpoint, timeout) as (connection, error_output):
            connection.settimeout(timeout)
            connection.sendall(_request(method, target, b"", headers or {}))
            begun = b""
            while b"\r\n\r\n" not in begun and (piece := connection.recv(_CHUNK)):
                begun += piece
            if not begun:
                raise not_an_engine_error(endpoint, error_output())
            status, piece = _parse(endpoint, begun)
            connection.settimeout(idle)
            yield status, piece
            while piece := connection.recv(_CHUNK):
                yield status, piece
    except TimeoutError:
        raise timeout_error(endpoint, timeout if idle is None else idle) from None
    except OSError as error:
        raise unreachable_error(endpoint, error) from None


def upload(
    endpoint: Endpoint,
    target: str,
    size: int,
    pieces: Iterable[bytes],
    media_type: str,
    idle: float,
    *,
    method: str = "POST",
) -> tuple[int, bytes]:
    """Sends ``size`` bytes in ``pieces``; returns status and body of the response.

    The engine may be silent for ``idle`` seconds. An exception from ``pieces``, which must not be an OSError, ends the
    upload: the engine then has a part of it.
    """
    request = _request(method, target, b"", {"Content-Type": media_type, "Content-Length": str(size)})
    try:
        with connected(endpoint, idle) as (connection, error_output):
            connection.settimeout(idle)
            # An engine that refuses the upload stops reading; its response says why.
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(request)
                for piece in pieces:
                    connection.sendall(piece)
            response = b""
            with suppress(ConnectionResetError):
                while piece := connection.recv(_CHUNK):
                    response += piece
            if not response:
                raise not_an_engine_error(endpoint, error_output())
    except TimeoutError:
        raise timeout_error(endpoint, idle) from None
    except OSError as error:
        raise unreachable_error(endpoint, error) from None
    return _parse(endpoint, response)


def _request(method: str, target: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    head = f"{method} {target} HTTP/1.0\r\nHost: docker\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _send_and_receive(
    endpoint: Endpoint, connection: socket.socket, request: bytes, timeout: float, largest: int | None
) -> bytes:
    deadline = time.monotonic() + timeout
    received = 0
    pieces: list[bytes] = []
    try:
        connection.settimeout(timeout)
        connection.sendall(request)
        while piece := connection.recv(_CHUNK):
            pieces.append(piece)
            received += len(piece)
            if largest is not None and received > largest:
                raise EngineAnswerTooLargeError(
                    f"the engine at {endpoint.host} answers with more than {largest:,} bytes"
                )
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
    except TimeoutError:
        raise timeout_error(endpoint, timeout, _split(b"".join(pieces))[1]) from None
    except (ConnectionResetError, BrokenPipeError):
        # What did arrive may be a whole response.
        pass
    return b"".join(pieces)


def _parse(endpoint: Endpoint, response: bytes) -> tuple[int, bytes]:
    """Splits a response into status and body."""
    head, body = _split(response)
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise not_an_engine_error(endpoint)
    return int(words[1]), body


def _split(response: bytes) -> tuple[bytes, bytes]:
    head, _, body = response.partition(b"\r\n\r\n")
    return head, body
