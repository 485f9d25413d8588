"""Requests to the engine's API, with JSON in and out.

API reference: https://docs.docker.com/reference/api/engine/ (paths here are unversioned: the engine's own version).
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from builder.engine.client import errors, transport
from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint

# A request that another one got in the way of, in which case the engine did nothing (moby, daemon/containerd).
_CHANGED_MEANWHILE = b"consistency error: data changed during operation, retry"
_PAUSES = (0.02, 0.1, 0.3, 1.0)  # seconds
# For what waits for the engine's disk: the first container of an image of tens of GB, which unpacks it, or the end of
# one. Minutes where another image is exported meanwhile.
DISK_SECONDS = 900.0


def request(
    endpoint: Endpoint,
    method: str,
    path: str,
    *,
    query: Mapping[str, str | int] | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> Any:
    """Sends a request; returns the response's body as parsed JSON, None if it is empty.

    ``path`` is quoted by the caller (see `quoted`); ``timeout`` is for the whole exchange, in seconds. Raises
    EngineHTTPError for every status of 400 and above, EngineTimeoutError when the time is over, and EngineError where
    no engine answers.
    """
    data = raw(endpoint, method, path, query=query, body=body, headers=headers, timeout=timeout)
    if not data.strip():
        return None
    try:
        return json.loads(data)
    except ValueError:
        raise EngineError(
            f"the answer of the engine at {endpoint.host} to {method} {path} is not JSON, or broke off",
            hint="was the engine stopped meanwhile? `docker info` tells; then run this again",
        ) from None


def raw(
    endpoint: Endpoint,
    method: str,
    path: str,
    *,
    query: Mapping[str, str | int] | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 60,
    largest: int | None = None,
) -> bytes:
    """Sends a request as `request` does; returns the body as it came, since a container's output is not JSON. One that
    the engine asks to send again is sent again. Raises EngineAnswerTooLargeError for a response beyond ``largest``
    bytes."""
    content = b"" if body is None else json.dumps(body).encode()
    for pause in (*_PAUSES, 0.0):
        status, data = transport.exchange(
            endpoint, method, _target(path, query), content, headers or {}, timeout, largest
        )
        if status < 400 or _CHANGED_MEANWHILE not in data:
            break
        time.sleep(pause)
    if status >= 400:
        raise _http_error(status, data, f"{method} {path}")
    return data


def stream(
    endpoint: Endpoint,
    path: str,
    *,
    query: Mapping[str, str | int] | None = None,
    timeout: float = 60,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    idle: float | None = None,
) -> Iterator[bytes]:
    """Sends a request; yields the body of the response as it comes, until the engine ends it.

    It has to begin within ``timeout`` seconds, and with ``idle`` may not pause for longer. Raises as `request` does.
    """
    error_body = b""
    target = _target(path, query)
    for status, piece in transport.open_stream(endpoint, target, timeout, method=method, headers=headers, idle=idle):
        if status < 400:
            yield piece
            continue
        error_body += piece
    if error_body:
        raise _http_error(status, error_body, f"{method} {path}")


def quoted(reference: str) -> str:
    """Quotes an image reference or a name for a path; slashes stay, since the engine's routes take them."""
    return quote(reference, safe="/:@")


def _target(path: str, query: Mapping[str, str | int] | None) -> str:
    return path + ("?" + urlencode(query) if query else "")


def _http_error(status: int, body: bytes, request_line: str) -> errors.EngineHTTPError:
    return errors.EngineHTTPError(status, _explanation(body) or f"status {status} for {request_line}")


def _explanation(body: bytes) -> str:
    try:
        value = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()
    return str(value.get("message", "")) if isinstance(value, dict) else ""
