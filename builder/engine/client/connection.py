"""A connection to an engine's socket: unix, TCP, TLS, or through ssh."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.engine.client import ssh
from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.engine.client.endpoint import Endpoint

_SSH_WAIT = 2.0
_PORT, _TLS_PORT = 2375, 2376


@contextmanager
def connected(endpoint: Endpoint, timeout: float) -> Iterator[tuple[socket.socket, Callable[[], str]]]:
    """Opens a connection within ``timeout`` seconds; yields it with a function that returns ssh's error output.

    Raises OSError where the engine cannot be reached, EngineError for an address that is none.
    """
    if endpoint.host.startswith("ssh://"):
        with _through_ssh(endpoint) as connection_and_errors:
            yield connection_and_errors
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

    try:
        address = urlsplit(endpoint.host)
        _ = address.port
    except ValueError as error:
        raise EngineError(f"{endpoint.host} (from {endpoint.origin}) is not an address: {error}") from None
    if address.scheme != "tcp" or not address.hostname:
        raise EngineError(
            f"{endpoint.host} (from {endpoint.origin}) is not the address of an engine",
            hint="an address is unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST",
        )
    port = address.port or (_TLS_PORT if endpoint.tls else _PORT)
    connection = socket.create_connection((address.hostname, port), timeout=timeout)
    return _secured(endpoint, connection, address.hostname) if endpoint.tls else connection


def _secured(endpoint: Endpoint, connection: socket.socket, hostname: str) -> socket.socket:
    """Wraps the connection in TLS with Docker's files: ca.pem, and the client's cert.pem and key.pem."""
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
        return context.wrap_socket(connection, server_hostname=hostname)
    except OSError:
        connection.close()
        raise


@contextmanager
def _through_ssh(endpoint: Endpoint) -> Iterator[tuple[socket.socket, Callable[[], str]]]:
    """Opens a connection to another machine's engine as the docker command does, by ``docker system dial-stdio``."""
    import subprocess

    argv = ssh.argv(endpoint.host, ["-T"], ["docker system dial-stdio"])
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE)

        def error_output() -> str:
            try:
                stderr: bytes = process.communicate(timeout=_SSH_WAIT)[1]
            except subprocess.TimeoutExpired:
                return ""
            return stderr.decode(errors="replace").strip()

        with process:
            try:
                yield ours, error_output
            finally:
                process.kill()
