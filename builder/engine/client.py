"""Requests to a Docker engine, its streams, and the choice of the engine."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from builder.base.errors import EngineError
from builder.base.values import dataclass, replace

START_HINT = "start Docker (`sudo systemctl start docker`), or start a private engine with `scripts/engine up`"
_FAR_HINT = "check the address, and that Docker runs on that machine (`sudo systemctl start docker` there)"
_SSH_HINT = "check that `ssh` logs in to that machine without a password, and that Docker runs there"
_AGAIN_HINT = "`docker info` shows whether the engine runs; then run the command again"
NO_ROOM = "no space left"  # engines and registries differ in upper and lower case
NO_ROOM_HINT = "make room on that engine's disk (`docker system df` shows what uses it), then run the command again"


class EngineHTTPError(EngineError):
    """An HTTP error status from the engine, 400 or above; ``explanation`` is the engine's own message."""

    def __init__(self, explanation: str) -> None:
        super().__init__(f"the Docker engine reports: {explanation}")
        self.explanation = explanation


class EngineMissingError(EngineHTTPError):
    """The engine has no such image, container or other object."""


class EngineConflictError(EngineHTTPError):
    """The request conflicts with the object's state: the name already exists, or the image is in use."""


class EngineTimeoutError(EngineError):
    """A response that was not complete in time; ``partial`` is the part of the body that arrived."""

    def __init__(self, endpoint: Endpoint, timeout: float, partial: bytes = b"") -> None:
        super().__init__(
            f"the engine at {endpoint.host} has not answered for {timeout:g} seconds",
            hint="the machine may be overloaded, or its disk full: "
            f"`docker -H {endpoint.host} info` shows whether the engine answers",
        )
        self.partial = partial


class EngineAnswerTooLargeError(EngineError):
    """A response that is too large for its request."""


def unreachable_error(endpoint: Endpoint, error: OSError | str) -> EngineError:
    where = f"{endpoint.host} (from {endpoint.origin})"
    if isinstance(error, PermissionError):
        return EngineError(
            f"no permission to use the Docker engine at {where}",
            hint="add yourself to the group docker (`sudo usermod -aG docker $USER`), then log in again",
        )
    why = getattr(error, "strerror", None) or str(error)
    return EngineError(f"no Docker engine answers at {where}{why and f': {why}'}", hint=_start_hint(endpoint))


def _start_hint(endpoint: Endpoint) -> str:
    hints = {"unix": START_HINT, "ssh": _SSH_HINT}
    return hints.get(endpoint.host.partition("://")[0], _FAR_HINT)


# The choice of the engine.

DEFAULT_HOST = "unix:///var/run/docker.sock"
_PLUGIN = ("docker", "buildx")
OWN_BUILDER = "default"


@dataclass(frozen=True)
class Endpoint:
    """The address of an engine, and the buildx that builds in it. ``host`` has the format of DOCKER_HOST (unix://,
    tcp://, ssh://). ``buildx`` is the argument vector that starts buildx. ``origin`` is the source of the address, for
    messages. ``tls`` is the folder of ca.pem, cert.pem and key.pem, if any. ``instance`` is the buildx instance that
    builds; it may be on another machine. ``node`` is empty for the user's own engine."""

    host: str
    buildx: tuple[str, ...]
    origin: str
    tls: str = ""
    tls_verify: bool = True
    instance: str = OWN_BUILDER
    node: str = ""

    @property
    def builds_elsewhere(self) -> bool:
        """True if a BuildKit outside the engine builds. It cannot use the engine's images."""
        return self.instance != OWN_BUILDER


def find_endpoint(environ: Mapping[str, str]) -> Endpoint:
    """Returns the engine that the environment variables and docker's configuration select, without connecting to it.
    The order is docker's own, except that the private engine of ``scripts/engine`` precedes the current context: the
    script starts it only if no engine with buildx answered. Raises EngineError for a context that does not exist."""
    # The private engine of ``scripts/engine`` may be stopped.
    socket_file = Path(environ.get("BUILDER_ENGINE_RUN") or "/run/builder-engine") / "docker.sock"
    home = Path(environ.get("BUILDER_ENGINE_HOME") or "/var/lib/builder-engine")
    origin = "the private engine of scripts/engine"
    private = Endpoint(f"unix://{socket_file}", (str(home / "bin" / "docker-buildx"),), origin)
    if host := environ.get("DOCKER_HOST"):
        if host == private.host:
            return replace(private, origin="DOCKER_HOST")
        verify = bool(environ.get("DOCKER_TLS_VERIFY"))
        folder = environ.get("DOCKER_CERT_PATH") or str(_config_folder(environ))
        tls = folder if verify or environ.get("DOCKER_TLS") else ""
        return Endpoint(host, _PLUGIN, "DOCKER_HOST", tls, verify)
    if context := environ.get("DOCKER_CONTEXT"):
        return _context(environ, context, "DOCKER_CONTEXT")
    if socket_file.is_socket():
        return private
    current = docker_configuration(environ).get("currentContext")
    if isinstance(current, str) and current:
        return _context(environ, current, f"currentContext in {_config_folder(environ) / 'config.json'}")
    return Endpoint(DEFAULT_HOST, _PLUGIN, "Docker's default")


def of_node(environ: Mapping[str, str], name: str, engine: str) -> Endpoint:
    """Returns the engine of the node ``name``: ``engine`` is an address (unix://, tcp://, ssh://) or a docker context.
    Only a context has certificates. Raises EngineError for a context that does not exist."""
    origin = f"node {name}"
    endpoint = Endpoint(engine, _PLUGIN, origin) if "://" in engine else _context(environ, engine, origin)
    return replace(endpoint, node=name)


def environment(endpoint: Endpoint) -> dict[str, str]:
    """Returns the variables that make a buildx process build in this engine, or in the endpoint's ``instance``. The
    user's current builder may be a container or a cluster: its images are not in the engine, and it cannot use local
    base images. With DOCKER_HOST set, the builder ``default`` is the engine's own."""
    variables = {"DOCKER_HOST": endpoint.host, "BUILDX_BUILDER": endpoint.instance}
    if endpoint.tls:
        variables |= {"DOCKER_CERT_PATH": endpoint.tls, "DOCKER_TLS": "1"}
        if endpoint.tls_verify:
            variables["DOCKER_TLS_VERIFY"] = "1"
    return variables


def docker_configuration(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the user's config.json of Docker; empty without a file. Raises EngineError if it cannot be read."""
    return _json(_config_folder(environ) / "config.json")


def _config_folder(environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("HOME") or Path.home())
    return Path(environ.get("DOCKER_CONFIG") or home / ".docker")


def _context(environ: Mapping[str, str], name: str, origin: str) -> Endpoint:
    if name == "default":
        return Endpoint(DEFAULT_HOST, _PLUGIN, origin)
    from hashlib import sha256

    contexts = _config_folder(environ) / "contexts"
    folder = sha256(name.encode()).hexdigest()
    meta = contexts / "meta" / folder / "meta.json"
    docker: Any = _json(meta).get("Endpoints")
    docker = docker.get("docker") if isinstance(docker, dict) else None
    if not (isinstance(docker, dict) and isinstance(docker.get("Host"), str)):
        message = f"the docker context `{name}` (from {origin}) does not exist or names no engine"
        hint = "`docker context ls` lists all contexts: name one of them, or `default` for this machine's engine"
        raise EngineError(message, hint=hint)
    tls = contexts / "tls" / folder / "docker"
    verify = not docker.get("SkipTLSVerify", False)
    return Endpoint(docker["Host"], _PLUGIN, f"context {name}, from {origin}", str(tls) if tls.is_dir() else "", verify)


def _json(path: Path) -> dict[str, Any]:
    """Returns the object in a file; empty without a file. Raises EngineError if the file is not JSON."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        hint = "give your user read access to the file; `sudo docker login` may have created it as root"
        raise EngineError(f"{path} cannot be read: {error.strerror}", hint=hint) from None
    except ValueError as error:
        hint = "repair the file: Docker cannot read it either"
        raise EngineError(f"{path} is not valid JSON: {error}", hint=hint) from None
    return value if isinstance(value, dict) else {}


# Connections: a socket of this machine, TCP with or without TLS, or ssh.

_FORM = "an address is ssh://[USER@]HOST[:PORT]"


def ssh_argv(host: str, options: Sequence[str], command: Sequence[str]) -> list[str]:
    """The arguments that run ``command`` on the machine of ``ssh://[USER@]HOST[:PORT]``. Raises EngineError."""
    try:
        address = urlsplit(host)
        name, port = address.hostname or "", address.port
    except ValueError as error:
        raise EngineError(f"{host} is not an address: {error}", hint=_FORM) from None
    if not name or name.startswith("-"):
        raise EngineError(f"{host} is not an address: it does not name a machine", hint=_FORM)
    user = ("-l", address.username) if address.username else ()
    return ["ssh", *options, *user, *(("-p", str(port)) if port else ()), "--", name, *command]


_SSH_WAIT = 2.0
_PORT, _TLS_PORT = 2375, 2376


@contextmanager
def connected(endpoint: Endpoint, timeout: float) -> Iterator[tuple[socket.socket, Callable[[], str]]]:
    """Opens a connection within ``timeout`` seconds; yields it with a function that returns ssh's error output. Raises
    OSError if the engine cannot be reached, and EngineError for an invalid address."""
    if endpoint.host.startswith("ssh://"):
        with _through_ssh(endpoint) as (connection, error_output):
            connection.settimeout(timeout)
            yield connection, error_output
        return
    try:
        opened = _connect(endpoint, timeout)
    except TimeoutError as error:  # callers would take this OSError for a slow answer
        raise unreachable_error(endpoint, error) from None
    with opened as connection:
        connection.settimeout(timeout)
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

    shown = f"{endpoint.host} (from {endpoint.origin})"
    form = "an address is unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST"
    try:
        address = urlsplit(endpoint.host)
        _ = address.port
    except ValueError as error:
        raise EngineError(f"{shown} is not an address: {error}", hint=form) from None
    if address.scheme != "tcp" or not address.hostname:
        raise EngineError(f"{shown} is not the address of an engine", hint=form)
    port = address.port or (_TLS_PORT if endpoint.tls else _PORT)
    connection = socket.create_connection((address.hostname, port), timeout=timeout)
    return _secured(endpoint, connection, address.hostname) if endpoint.tls else connection


def _secured(endpoint: Endpoint, connection: socket.socket, hostname: str) -> socket.socket:
    """Wraps the connection in TLS with Docker's files: ca.pem, and the client's cert.pem and key.pem."""
    import ssl

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

    argv = ssh_argv(endpoint.host, ["-T"], ["docker system dial-stdio"])
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


# HTTP requests to an engine. `http.client` would take 20 ms more to import than this code, and docker's SDK 110 ms;
# ``builder list`` may take 150 ms in all. The SDK limits the time of one read, not of the whole response, and requires
# paramiko for ssh. HTTP/1.0 is simple: the response is not chunked, and ends with the connection.
# API reference: https://docs.docker.com/reference/api/engine/ (unversioned paths: the engine's own version).

_CHUNK = 1 << 18
_END = b"\r\n\r\n"
# The error of a request that conflicted with another request. The engine did nothing (moby, daemon/containerd).
_CHANGED_MEANWHILE = b"consistency error: data changed during operation, retry"
_PAUSES = (0.02, 0.1, 0.3, 1.0)  # seconds
# The limit for requests that wait for the engine's disk. The first container of an image unpacks tens of GB, and
# removing a container also waits. Both take minutes while another image is exported.
DISK_SECONDS = 900.0


@contextmanager
def _responding(
    endpoint: Endpoint, method: str, target: str, body: Iterable[bytes], headers: Mapping[str, str], timeout: float
) -> Iterator[tuple[socket.socket, int, Iterator[bytes]]]:
    """Sends a request; yields the connection, the status and the pieces of the response's body."""
    lines = [f"{method} {target} HTTP/1.0", "Host: docker", *(f"{name}: {value}" for name, value in headers.items())]
    try:
        with connected(endpoint, timeout) as (connection, error_output):
            try:
                for piece in chain(["\r\n".join(lines).encode() + _END], body):
                    connection.sendall(piece)
            except (ConnectionResetError, BrokenPipeError):
                # An engine that refuses an upload stops reading, and responds with the reason. End the request.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
            begun = b""
            with suppress(ConnectionResetError, BrokenPipeError):
                while _END not in begun and (piece := connection.recv(_CHUNK)):
                    begun += piece
            head, _, first = begun.partition(_END)
            words = head.split(b"\r\n", 1)[0].split(b" ", 2)
            if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
                if not begun:
                    raise unreachable_error(endpoint, error_output())
                where = f"{endpoint.host} (from {endpoint.origin})"
                raise EngineError(f"the server at {where} is not a Docker engine", hint=_start_hint(endpoint))
            pieces = chain([first] if first else [], iter(lambda: connection.recv(_CHUNK), b""))
            yield connection, int(words[1]), pieces
    except TimeoutError:
        raise EngineTimeoutError(endpoint, timeout) from None
    except OSError as error:
        raise unreachable_error(endpoint, error) from None


def exchange(
    endpoint: Endpoint,
    method: str,
    target: str,
    body: Iterable[bytes],
    headers: Mapping[str, str],
    timeout: float,
    *,
    is_whole: bool = True,
    largest: int | None = None,
) -> tuple[int, bytes]:
    """Sends a request with the pieces of its body; returns the status and the body of the response. ``timeout`` limits
    the whole exchange in seconds; unless ``is_whole``, it limits only each silence of the engine. ``body`` may raise
    any exception except OSError: the engine then has a part of the request. Raises EngineAnswerTooLargeError for a
    response of more than ``largest`` bytes."""
    deadline = time.monotonic() + timeout
    content = bytearray()
    with _responding(endpoint, method, target, body, headers, timeout) as (connection, status, pieces):
        try:
            # The part that arrived may be a whole response.
            with suppress(ConnectionResetError, BrokenPipeError):
                for piece in pieces:
                    content += piece
                    if largest is not None and len(content) > largest:
                        message = f"the engine at {endpoint.host} sent an answer of more than {largest:,} bytes"
                        raise EngineAnswerTooLargeError(message)
                    connection.settimeout(max(deadline - time.monotonic(), 0.001) if is_whole else timeout)
        except TimeoutError:
            raise EngineTimeoutError(endpoint, timeout, bytes(content)) from None
    return status, bytes(content)


def upload(
    endpoint: Endpoint, target: str, size: int, pieces: Iterable[bytes], idle: float, *, method: str = "POST"
) -> tuple[int, bytes]:
    """Sends an archive of ``size`` bytes with `exchange`; the engine may be silent for ``idle`` seconds."""
    headers = {"Content-Type": "application/x-tar", "Content-Length": str(size)}
    return exchange(endpoint, method, target, pieces, headers, idle, is_whole=False)


class EngineAnswer(dict[str, Any]):
    """An object in a response. Other programs answer requests like an engine: a key that their object lacks is an
    EngineError."""

    def __missing__(self, key: str) -> Any:
        raise EngineError(f"the engine's answer has no `{key}`", hint=_AGAIN_HINT)


def request(
    endpoint: Endpoint,
    method: str,
    path: str,
    *,
    query: Mapping[str, str | int] | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> EngineAnswer:
    """Sends a request; returns the object in the response's body, without keys if the body is empty. The caller quotes
    ``path`` (see `quoted`). ``timeout`` limits the whole exchange, in seconds. Raises EngineHTTPError for every status
    of 400 and above, EngineTimeoutError after ``timeout``, and EngineError if no engine answers, or its answer ends
    early or is not an object."""
    data = raw(endpoint, method, path, query=query, body=body, headers=headers, timeout=timeout)
    if method != "GET" and not data.strip():  # an empty answer to GET was cut off
        return EngineAnswer()
    with suppress(ValueError, RecursionError):
        if isinstance(answer := json.loads(data), dict):
            return EngineAnswer(answer)
    raise _invalid_answer(endpoint, f"{method} {path}")


def listed(
    endpoint: Endpoint, path: str, *, query: Mapping[str, str | int] | None = None, timeout: float = 60
) -> list[EngineAnswer]:
    """Sends a GET request; returns the objects in the list of the response. Raises as `request` does."""
    data = raw(endpoint, "GET", path, query=query, timeout=timeout)
    with suppress(ValueError, RecursionError):
        answers = json.loads(data)
        if answers is None:  # an empty list; an empty answer was cut off
            return []
        if isinstance(answers, list) and all(isinstance(each, dict) for each in answers):
            return list(map(EngineAnswer, answers))
    raise _invalid_answer(endpoint, f"GET {path}")


def _invalid_answer(endpoint: Endpoint, request_line: str) -> EngineError:
    message = f"the engine at {endpoint.host} answered {request_line} with incomplete or invalid JSON"
    return EngineError(message, hint=_AGAIN_HINT)


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
    """Sends a request as `request` does, but returns the raw body: a container's output is not JSON. Repeats the
    request if the engine asks for it. Raises EngineAnswerTooLargeError for a body of more than ``largest`` bytes."""
    content = b"" if body is None else json.dumps(body).encode()
    json_headers = {"Content-Type": "application/json", "Content-Length": str(len(content))} if content else {}
    every = {**(headers or {}), **json_headers}
    for pause in (*_PAUSES, 0.0):
        status, data = exchange(endpoint, method, _target(path, query), [content], every, timeout, largest=largest)
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
    """Sends a request; yields the pieces of the response's body until the engine ends it. The response must begin
    within ``timeout`` seconds, and may pause for at most ``idle`` seconds, if given. Closing the generator closes the
    connection, which ends the engine's work. Raises as `request` does."""
    with _responding(endpoint, method, _target(path, query), (), headers or {}, timeout) as (
        connection,
        status,
        pieces,
    ):
        connection.settimeout(idle)
        try:
            if status >= 400:
                raise _http_error(status, b"".join(pieces), f"{method} {path}")
            yield from pieces
        except TimeoutError:
            raise EngineTimeoutError(endpoint, idle or timeout) from None


def quoted(reference: str) -> str:
    """Quotes an image reference or a name for a path. Slashes stay, since the engine's routes accept them."""
    return quote(reference, safe="/:@")


def _target(path: str, query: Mapping[str, str | int] | None) -> str:
    return path + ("?" + urlencode(query) if query else "")


def _http_error(status: int, body: bytes, request_line: str) -> EngineHTTPError:
    try:
        value = json.loads(body)
        explanation = str(value.get("message", "")) if isinstance(value, dict) else ""
    except ValueError:
        explanation = body.decode(errors="replace").strip()
    kinds = {404: EngineMissingError, 409: EngineConflictError}
    return kinds.get(status, EngineHTTPError)(explanation or f"status {status} for {request_line}")


def parse_json_line(line: str | bytes) -> dict[str, Any] | None:
    """Returns the JSON object of a line; None for any other text."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def objects(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yields the object of each line. A line may be split between ``pieces``. Raises EngineError for a line that is not
    an object, such as the last line of an interrupted stream."""
    rest = b""
    for piece in chain(pieces, [b"\n"]):
        *lines, rest = (rest + piece).split(b"\n")
        values = [parse_json_line(line) for line in lines if line.strip()]
        if None in values:
            raise EngineError("the engine's answer ended early", hint=_AGAIN_HINT)
        yield from filter(None, values)


# The engine's multiplexed stream of a container's output. A frame has one byte for the stream, three empty bytes, four
# bytes for the length, and then the content. In a log each frame is one line, or a piece of a very long line.
# https://docs.docker.com/reference/api/engine/ (ContainerAttach, "Stream format")

_HEADER = 8


def payloads(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the content of each frame, which ``pieces`` may split; the received part of an incomplete last frame."""
    buffer = b""
    for piece in pieces:
        buffer += piece
        start = 0
        while start + _HEADER <= len(buffer):
            end = start + _HEADER + int.from_bytes(buffer[start + 4 : start + _HEADER])
            if end > len(buffer):
                break
            yield buffer[start + _HEADER : end]
            start = end
        buffer = buffer[start:]
    if len(buffer) > _HEADER:
        yield buffer[_HEADER:]


def text(stream: bytes) -> str:
    return b"".join(payloads([stream])).decode(errors="replace")
