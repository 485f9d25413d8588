"""Asking the engine: one function, JSON in and out.

On a unix socket the request is written by hand: importing `http.client` costs 20 ms more and docker's SDK 110 ms, of
the 150 that `builder list` may take. HTTP/1.0 keeps that simple: the answer is neither chunked nor kept open. Every
other address (tcp, TLS, ssh) goes through the SDK's session, which knows them all.

API reference: https://docs.docker.com/reference/api/engine/ (paths here are unversioned: the engine's own version).
"""

from __future__ import annotations

import json
import socket
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.endpoint import Endpoint

_CHUNK = 1 << 18
START_HINT = "start Docker (`sudo systemctl start docker`), or start a private engine with `make engine`"


class RefusedError(EngineError):
    """The engine answered, and said no: ``status`` is the HTTP status, ``said`` the engine's own words."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"the Docker engine says: {said}")
        self.status = status
        self.said = said


class SlowError(EngineError):
    """No whole answer in time; ``partial`` is the part of the body that did arrive."""

    def __init__(self, message: str, *, partial: bytes = b"", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.partial = partial


def request(
    endpoint: Endpoint,
    method: str,
    path: str,
    *,
    query: Mapping[str, str | int] | None = None,
    body: object = None,
    timeout: float = 60,
) -> Any:
    """The engine's answer as parsed JSON; None where it has no body.

    ``path`` is quoted by the caller (see `quoted`); ``timeout`` is for the whole exchange, in seconds. Raises
    RefusedError for every status of 400 and above (404: not found), SlowError, and EngineError where no engine answers.
    """
    data = raw(endpoint, method, path, query=query, body=body, timeout=timeout)
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
    timeout: float = 60,
) -> bytes:
    """As `request`, with the body as it came: the output of a container is not JSON."""
    target = path + ("?" + urlencode(query) if query else "")
    sent = b"" if body is None else json.dumps(body).encode()
    if endpoint.host.startswith("unix://"):
        status, data = _over_socket(endpoint, method, target, sent, timeout)
    else:
        status, data = _over_sdk(endpoint, method, target, sent, timeout)
    if status >= 400:
        raise RefusedError(status, _said(data) or f"status {status} for {method} {path}")
    return data


def quoted(reference: str) -> str:
    """An image reference or a name as one piece of a path; slashes stay, since the engine's routes take them."""
    return quote(reference, safe="/:@")


def _over_socket(endpoint: Endpoint, method: str, target: str, sent: bytes, timeout: float) -> tuple[int, bytes]:
    head = f"{method} {target} HTTP/1.0\r\nHost: docker\r\n"
    if sent:
        head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n"
    deadline = time.monotonic() + timeout
    pieces: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(endpoint.host.removeprefix("unix://"))
            connection.sendall(head.encode() + b"\r\n" + sent)
            while piece := connection.recv(_CHUNK):
                pieces.append(piece)
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
        except TimeoutError:
            raise _slow(endpoint, timeout, _split(b"".join(pieces))[1]) from None
        except OSError as error:
            raise _unreachable(endpoint, error) from None
    return _status_and_body(endpoint, b"".join(pieces))


def _split(answer: bytes) -> tuple[bytes, bytes]:
    head, _, data = answer.partition(b"\r\n\r\n")
    return head, data


def _status_and_body(endpoint: Endpoint, answer: bytes) -> tuple[int, bytes]:
    head, data = _split(answer)
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise EngineError(
            f"what answers at {endpoint.host} (from {endpoint.origin}) is not a Docker engine, or it stopped",
            hint=START_HINT,
        )
    return int(words[1]), data


@lru_cache(maxsize=4)
def _session(endpoint: Endpoint) -> Any:
    """docker's SDK as an HTTP session. Its own version negotiation is skipped: the paths here have none."""
    import docker
    import docker.tls

    tls: Any = False
    if endpoint.tls:
        pair = (f"{endpoint.tls}/cert.pem", f"{endpoint.tls}/key.pem")
        tls = docker.tls.TLSConfig(client_cert=pair, ca_cert=f"{endpoint.tls}/ca.pem", verify=endpoint.tls_verify)
    remote = endpoint.host.startswith("ssh://")
    return docker.APIClient(base_url=endpoint.host, version="1.41", tls=tls, use_ssh_client=remote)


def _over_sdk(endpoint: Endpoint, method: str, target: str, sent: bytes, timeout: float) -> tuple[int, bytes]:
    import docker.errors
    import requests

    headers = {"Content-Type": "application/json"} if sent else {}
    try:
        session = _session(endpoint)
        # With ssh, a broken connection shows as an OSError of the pipe to the ssh process.
        answer = session.request(method, session.base_url + target, data=sent, headers=headers, timeout=timeout)
    except requests.exceptions.Timeout:
        raise _slow(endpoint, timeout, b"") from None
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        raise _unreachable(endpoint, error) from None
    return int(answer.status_code), bytes(answer.content)


def _said(data: bytes) -> str:
    try:
        value = json.loads(data)
    except ValueError:
        return data.decode(errors="replace").strip()
    return str(value.get("message", "")) if isinstance(value, dict) else ""


def _slow(endpoint: Endpoint, timeout: float, partial: bytes) -> SlowError:
    return SlowError(
        f"the engine at {endpoint.host} has not answered for {timeout:g} seconds",
        partial=partial,
        hint="is the machine overloaded, or its disk full? `docker info` shows whether the engine is well",
    )


def _unreachable(endpoint: Endpoint, error: Exception) -> EngineError:
    where = f"{endpoint.host} (from {endpoint.origin})"
    if isinstance(error, PermissionError):
        return EngineError(
            f"no permission to use the Docker engine at {where}",
            hint="add yourself to its group, then log in again: sudo usermod -aG docker $USER",
        )
    why = getattr(error, "strerror", None) or str(error)
    return EngineError(f"no Docker engine answers at {where}: {why}", hint=START_HINT)
