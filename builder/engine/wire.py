"""HTTP to an engine by hand, over its unix socket or through ssh.

Importing `http.client` costs 20 ms more than this and docker's SDK 110 ms, of the 150 that ``builder list`` may take.
HTTP/1.0 keeps it simple: the answer is neither chunked nor is the connection kept, so it ends where the stream does.
"""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.engine.faults import foreign, slow, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.engine.endpoint import Endpoint

_CHUNK = 1 << 18
_SSH_WAIT = 2.0


def exchange(endpoint: Endpoint, method: str, target: str, sent: bytes, timeout: float) -> tuple[int, bytes]:
    """The status and the body that an engine at a unix:// or ssh:// address answers, within ``timeout`` seconds."""
    if endpoint.host.startswith("ssh://"):
        with _through_ssh(endpoint) as (connection, complaint):
            answer = _ask(endpoint, connection, _request(method, target, sent), timeout)
            if not answer:
                raise foreign(endpoint, complaint())
    else:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(endpoint.host.removeprefix("unix://"))
            except OSError as error:
                raise unreachable(endpoint, error) from None
            answer = _ask(endpoint, connection, _request(method, target, sent), timeout)
    head, body = _split(answer)
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise foreign(endpoint)
    return int(words[1]), body


def _request(method: str, target: str, sent: bytes) -> bytes:
    head = f"{method} {target} HTTP/1.0\r\nHost: docker\r\n"
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
        raise slow(endpoint, timeout, _split(b"".join(pieces))[1]) from None
    except OSError as error:
        raise unreachable(endpoint, error) from None
    return b"".join(pieces)


def _split(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


@contextmanager
def _through_ssh(endpoint: Endpoint) -> Iterator[tuple[socket.socket, Callable[[], str]]]:
    """A connection to the engine of another machine, made as the docker command makes it; and what ssh complains of.

    The SDK does the same, and needs paramiko for it even where it starts the ssh program.
    """
    import subprocess
    from urllib.parse import urlsplit

    place = urlsplit(endpoint.host)
    argv = ["ssh", "-T"]
    if place.username:
        argv += ["-l", place.username]
    if place.port:
        argv += ["-p", str(place.port)]
    argv += ["--", place.hostname or "", "docker system dial-stdio"]
    ours, theirs = socket.socketpair()
    with ours:
        try:
            process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)
        except OSError as error:
            raise unreachable(endpoint, error) from None
        finally:
            theirs.close()

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
