"""A real registry for tests, faults of registries, and additional engines."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import os
import secrets
import shutil
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import processes
from builder.base.project import Project
from builder.engine import client, images, transfer
from builder.engine.client import Endpoint
from tests import projects, shared
from tests.conftest import BASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


SCRIPTS = projects.REPOSITORY_ROOT / "scripts"
# For `docker login` as tester:secret; made with htpasswd -B.
HTPASSWD = "tester:$2b$05$WWvQHyCqMlpSD1eGckPVX.clG/OIf5JKQ6RzqNOuexZL8uAdOlBOy\n"
_CHUNK = 1 << 16
_LARGE = 100_000  # bytes: larger content is a layer, not a configuration


@dataclass
class Registry:
    """A registry that runs as a separate process. Its content survives `kill`."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        argv = [str(SCRIPTS / "registry"), "serve", str(self.folder / "config.yml")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        end = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < end, "the registry does not start"
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def registry(folder: Path, *, users: str = "") -> Iterator[Registry]:
    """Runs a registry that stores its images in ``folder``. With ``users`` (htpasswd), it requires a login."""
    instance = Registry(folder, processes.free_port())
    auth = ""
    if users:
        projects.write(folder / "users", users)
        auth = f"auth: {{htpasswd: {{realm: tests, path: {folder}/users}}}}\n"
    config = f"""\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}
http: {{addr: "{instance.address}"}}
{auth}"""
    projects.write(folder / "config.yml", config)
    instance.start()
    try:
        yield instance
    finally:
        instance.kill()


@contextmanager
def image(endpoint: Endpoint) -> Iterator[str]:
    """Makes the registry image that `builder copy` would get from Docker Hub. Removes it when the block ends, together
    with its data volume unless the volume already existed."""
    name = f"{shared.unique_name()}-registry:1"
    volumes = client.request(endpoint, "GET", "/volumes")["Volumes"] or ()
    had = any(volume["Name"] == transfer.VOLUME for volume in volumes)
    subprocess.run([SCRIPTS / "registry", "image", name], check=True, capture_output=True)
    try:
        yield name
    finally:
        images.remove_image(endpoint, name)
        if not had:
            client.request(endpoint, "DELETE", f"/volumes/{transfer.VOLUME}")


def push_base(endpoint: Endpoint, reference: str) -> None:
    """Pushes the base image of the tests to a registry as ``reference``."""
    images.tag_image(endpoint, BASE, reference)
    try:
        transfer.push_image(endpoint, reference, {}, lambda _: None)
    finally:
        images.remove_image(endpoint, reference)


def layer(path: str, content: bytes) -> bytes:
    """An unpacked layer with one file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(path)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def publish(
    registry: Registry,
    repository: str,
    tag: str,
    labels: dict[str, str],
    like: str = "latest",
    layers: Sequence[bytes] = (),
) -> str:
    """Adds an image with the tag ``tag`` to a registry: a copy of ``repository:like`` with different ``labels`` and
    additional ``layers``. Returns its digest."""

    def send(method: str, path: str, body: bytes = b"", kind: str = "application/octet-stream") -> tuple[Any, bytes]:
        connection = http.client.HTTPConnection(registry.address)
        accept = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
        connection.request(method, path, body or None, {"Accept": accept, "Content-Type": kind})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < 400, content
        return answer.headers, content

    def upload(content: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        place = send("POST", f"{root}/blobs/uploads/")[0]["Location"]
        send("PUT", f"{place}{'&' if '?' in place else '?'}digest={digest}", content)
        return digest

    root = f"/v2/{repository}"
    manifest = json.loads(send("GET", f"{root}/manifests/{like}")[1])
    configuration = json.loads(send("GET", f"{root}/blobs/{manifest['config']['digest']}")[1])
    configuration["config"] = {**(configuration.get("config") or {}), "Labels": labels}
    for each in layers:
        packed = gzip.compress(each, 1, mtime=0)
        kind = manifest["layers"][0]["mediaType"]
        manifest["layers"].append({"mediaType": kind, "digest": upload(packed), "size": len(packed)})
        configuration["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(each).hexdigest()}")
        configuration["history"].append({"created_by": "COPY"})
    content = json.dumps(configuration).encode()
    manifest["config"] |= {"digest": upload(content), "size": len(content)}
    headers, _ = send("PUT", f"{root}/manifests/{tag}", json.dumps(manifest).encode(), manifest["mediaType"])
    return str(headers["Docker-Content-Digest"])


def forget(endpoint: Endpoint, address: str) -> None:
    """Removes the images of a stopped registry from the engine."""
    for image in images.all_images(endpoint):
        for name in (*image.tags, *image.digests):
            if name.startswith(f"{address}/"):
                images.remove_image(endpoint, name)


def withdraw(registry: Registry, repository: str, digest: str) -> None:
    """Deletes an image from a registry, as its owner may."""
    connection = http.client.HTTPConnection(registry.address)
    connection.request("DELETE", f"/v2/{repository}/manifests/{digest}")
    assert connection.getresponse().status == 202


@dataclass
class Front:
    """A proxy in front of a registry that applies ``fault`` to the content of layers, ``times`` times.

    ``500`` answers with that status; ``cut`` ends in the middle; ``wrong`` flips bits; ``stall`` sends half and then
    nothing; ``slow`` takes ten seconds for a megabyte. ``sent`` counts the bytes that were sent to engines, ``layers``
    the layers that were begun. ``reached`` is set when a fault has happened. ``before_tag`` and ``after_tag`` are
    called once, by tag: before the registry gets the tag, and before the engine gets the registry's answer.
    ``immutable`` names tags that are refused, as by a registry with immutable tags. With ``hides_missing``, nobody may
    read a tag that does not exist, as in registries that make a repository at its first push.
    """

    upstream: Registry
    port: int = 0
    fault: str = ""
    times: int = 1_000_000
    immutable: frozenset[str] = frozenset()
    hides_missing: bool = False
    before_tag: dict[str, Callable[[], None]] = field(default_factory=dict)
    after_tag: dict[str, Callable[[], None]] = field(default_factory=dict)
    sent: int = 0
    layers: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def take(self) -> str:
        """Returns the fault for one answer, and counts it."""
        if not self.fault or self.times == 0:
            return ""
        self.times -= 1
        self.reached.set()
        return self.fault

    def heal(self) -> None:
        self.fault = ""
        self.released.set()


@contextmanager
def before(upstream: Registry) -> Iterator[Front]:
    """Runs a front of a registry during the block."""
    front = Front(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # An engine tries TLS first: the answer must look like HTTP.
        default_request_version = "HTTP/1.0"

        def log_message(self, *_: Any) -> None:
            pass

        def relay(self) -> None:
            with suppress(OSError, http.client.HTTPException):
                _relay(self, front)

    for method in ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.relay)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    front.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield front
    finally:
        front.heal()
        server.shutdown()
        server.server_close()


def _relay(handler: BaseHTTPRequestHandler, front: Front) -> None:
    body = _body(handler)
    tag = handler.path.rpartition("/")[2] if handler.command == "PUT" and "/manifests/" in handler.path else ""
    if tag:
        if meanwhile := front.before_tag.pop(tag, None):
            meanwhile()
        if tag in front.immutable:
            body = json.dumps({"errors": [{"code": "DENIED", "message": f"{tag} is configured as immutable"}]}).encode()
            handler.send_response(412)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
            return
    connection = http.client.HTTPConnection("127.0.0.1", front.upstream.port, timeout=60)
    headers = {
        # An engine sends its accepted types as several headers with the same name.
        key: ", ".join(handler.headers.get_all(key) or ())
        for key in handler.headers
        if key.lower() != "transfer-encoding"
    }
    try:
        connection.request(handler.command, handler.path, body=body, headers=headers)
        answer = connection.getresponse()
    except OSError:
        handler.close_connection = True
        return
    if meanwhile := front.after_tag.pop(tag, None):
        meanwhile()
    if front.hides_missing and answer.status == 404 and "/manifests/" in handler.path and handler.command == "GET":
        answer.read()
        denied = {"errors": [{"code": "DENIED", "message": "requested access to the resource is denied"}]}
        body = json.dumps(denied).encode()
        handler.send_response(403)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return
    size = len(body) if body else int(answer.getheader("Content-Length") or 0)
    layer = handler.command != "HEAD" and "/blobs/" in handler.path and size > _LARGE
    front.layers += layer
    fault = front.take() if layer else ""
    if fault == "500":
        answer.read()
        handler.send_response(500)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    handler.send_response(answer.status)
    for key, value in answer.getheaders():
        handler.send_header(key, value)
    handler.end_headers()
    if handler.command != "HEAD":
        _pass_on(handler, front, answer, fault)


def _pass_on(handler: BaseHTTPRequestHandler, front: Front, answer: http.client.HTTPResponse, fault: str) -> None:
    half = int(answer.getheader("Content-Length") or 0) // 2
    sent = 0
    while data := answer.read(_CHUNK):
        if fault == "wrong":
            data = bytes(byte ^ 1 for byte in data)
        if fault in {"cut", "stall"} and sent + len(data) > half:
            handler.wfile.write(data[: max(half - sent, 0)])
            handler.wfile.flush()
            if fault == "stall":
                front.released.wait(600)
            handler.close_connection = True
            return
        if fault == "slow":
            front.released.wait(10 * len(data) / 1_000_000)
        handler.wfile.write(data)
        sent += len(data)
        front.sent += len(data)


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("Transfer-Encoding", "").lower() == "chunked":
        pieces = []
        while size := int(handler.rfile.readline().split(b";")[0], 16):
            pieces.append(handler.rfile.read(size))
            handler.rfile.readline()
        handler.rfile.readline()
        return b"".join(pieces)
    return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))


@dataclass(frozen=True)
class Node:
    """An additional engine on this machine. ``environ`` is for scripts/engine, which runs with ``prefix``."""

    environ: dict[str, str]
    host: str
    prefix: tuple[str, ...] = ()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, ("docker", "buildx"), "a node of the tests")

    @property
    def pid(self) -> int:
        """The id of the engine's process."""
        return int(Path(self.environ["BUILDER_ENGINE_RUN"], "dockerd.pid").read_text())

    def script(self, *arguments: str) -> None:
        argv = [*self.prefix, str(SCRIPTS / "engine"), *arguments]
        done = subprocess.run(argv, env=self.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@contextmanager
def node(
    bridge: str, address: str, *, disk: str = "", classic: bool = False, prefix: tuple[str, ...] = ()
) -> Iterator[Node]:
    """Runs an additional engine, and removes it with its images when the block ends. ``disk`` limits the size of its
    images (``64m``). A ``classic`` engine has the older image store. ``prefix`` starts the engine in a separate
    network. If scripts/engine fetched the first engine, its programs are used."""
    # pytest's folders have paths that are too long for containerd's sockets.
    with tempfile.TemporaryDirectory(prefix="node-") as folder:
        yield from _node(Path(folder), bridge, address, disk, classic, prefix)


def take_programs(home: Path) -> None:
    """Makes the home of an additional engine, with the programs of the private engine if it exists."""
    home.mkdir(parents=True)
    (home / ".builder-engine").touch()  # with this file, scripts/engine may use and delete the folder
    first = Path(os.environ.get("BUILDER_ENGINE_HOME") or "/var/lib/builder-engine") / "root"
    if first.is_dir():
        shutil.copytree(first, home / "root", symlinks=True, copy_function=os.link)


def _node(folder: Path, bridge: str, address: str, disk: str, classic: bool, prefix: tuple[str, ...]) -> Iterator[Node]:
    environ = {
        **os.environ,
        "BUILDER_ENGINE_HOME": str(folder / "home"),
        "BUILDER_ENGINE_RUN": str(folder / "run"),
        "BUILDER_ENGINE_BRIDGE": bridge,
        "BUILDER_ENGINE_ADDRESS": address,
        "BUILDER_ENGINE_PRIVATE": "1",
        "BUILDER_ENGINE_CLASSIC": "1" if classic else "",
    }
    environ.pop("DOCKER_HOST", None)
    home = folder / "home"
    take_programs(home)
    instance = Node(environ, f"unix://{folder}/run/docker.sock", prefix)
    if disk:
        (home / "data").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk}", "tmpfs", home / "data"], check=True)
    try:
        instance.script("up")
        yield instance
    finally:
        instance.script("down")
        subprocess.run(["umount", "-l", home / "data"], capture_output=True)
        instance.script("down", "--purge")


def configure(project: Project, *, registry: str = "", nodes: dict[str, str] | None = None, mirror: str = "") -> None:
    """Writes builder.yaml."""
    lines = [f"registry: {registry}\n"] if registry else []
    lines += [f"mirror: {mirror}\n"] if mirror else []
    lines += ["nodes:\n", *(f"  {name}: {host}\n" for name, host in nodes.items())] if nodes else []
    projects.write(project.root / "builder.yaml", "".join(lines) or "{}\n")


def grow(project: Project, kilobytes: int, text: str) -> None:
    """Lets the project's mod add ``kilobytes`` of incompressible data that is new to every engine."""
    # Otherwise BuildKit would use the cached result of another test.
    unique = f"# {secrets.token_hex(8)}"
    script = f'head -c {kilobytes}k /dev/urandom > /filler\necho {text} > "$WORKSPACE_DIR/chat.jinja"\n'
    projects.write(project.root / "mods/template/run.sh", f"set -eu\n{unique}\n{script}")
