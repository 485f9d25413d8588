"""Asking the engine: one function, JSON in and out.

API reference: https://docs.docker.com/reference/api/engine/ (paths here are unversioned: the engine's own version).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from builder.engine.client import errors, transport
from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.engine.client.endpoint import Endpoint


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
    """The engine's answer as parsed JSON; None where it has no body.

    ``path`` is quoted by the caller (see `quoted`); ``timeout`` is for the whole exchange, in seconds. Raises
    EngineHTTPError for every status of 400 and above (404: not found), EngineTimeoutError when the time is over, and
    EngineError where no engine answers.
    """
    data = raw(endpoint, method, path, query=query, body=body, headers=headers, timeout=timeout)
    if not data.strip():
        return None
    try:
        return json.loads(data)
    except ValueError:
        raise EngineError(
            f"the answer of the engine at {endpoint.host} to {method} {path} is not JSON, or broke off",
            hint="was the engine stopped meanwhile?",
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
) -> bytes:
    """As `request`, with the body as it came: the output of a container is not JSON."""
    target = path + ("?" + urlencode(query) if query else "")
    sent = b"" if body is None else json.dumps(body).encode()
    status, data = transport.exchange(endpoint, method, target, sent, headers or {}, timeout)
    if status >= 400:
        raise errors.EngineHTTPError(status, _said(data) or f"status {status} for {method} {path}")
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
    """The body of the answer as it comes, for as long as the engine goes on; it has to begin within ``timeout``
    seconds, and with ``idle`` it may not be silent for longer. Raises as `request` does."""
    refused = b""
    target = path + ("?" + urlencode(query) if query else "")
    for status, piece in transport.open_stream(endpoint, target, timeout, method=method, headers=headers, idle=idle):
        if status < 400:
            yield piece
            continue
        refused += piece
    if refused:
        raise errors.EngineHTTPError(status, _said(refused) or f"status {status} for {method} {path}")


def quoted(reference: str) -> str:
    """An image reference or a name as one piece of a path; slashes stay, since the engine's routes take them."""
    return quote(reference, safe="/:@")


def _said(data: bytes) -> str:
    try:
        value = json.loads(data)
    except ValueError:
        return data.decode(errors="replace").strip()
    return str(value.get("message", "")) if isinstance(value, dict) else ""
