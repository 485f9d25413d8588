"""Base images resolved by the real engine, from a small registry."""

from __future__ import annotations

import json
import socket
import threading
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.base.events import Message
from builder.engine import images, installed
from builder.engine.client import Endpoint
from builder.lock.model import BasePin
from builder.pins import resolver
from tests.engine.conftest import Build

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.engine

_OCI = "application/vnd.oci.image"


def index(*platforms: str) -> bytes:
    """Returns an index of images for these platforms, and an attestation, as registries have them."""
    manifests = []
    for number, platform in enumerate((*platforms, "unknown/unknown")):
        system, architecture, *variant = platform.split("/")
        manifests.append(
            {
                "mediaType": f"{_OCI}.manifest.v1+json",
                "digest": f"sha256:{number:064}",
                "size": 1,
                "platform": {
                    "os": system,
                    "architecture": architecture,
                    **({"variant": variant[0]} if variant else {}),
                },
            }
        )
    return json.dumps({"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": manifests}).encode()


@pytest.fixture
def registry() -> Iterator[tuple[str, dict[str, bytes]]]:
    """The address of a registry on this machine, and its manifests by `name:tag`, to be filled."""
    contents: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, rest = self.path.partition("/v2/")
            name, _, reference = rest.partition("/manifests/")
            by_digest = {
                f"{key.split(':')[0]}:sha256:{sha256(value).hexdigest()}": value for key, value in contents.items()
            }
            content = b"{}" if not rest else {**contents, **by_digest}.get(f"{name}:{reference}")
            self.send_response(200 if content is not None else 404)
            content = content or b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'
            self.send_header("Content-Type", f"{_OCI}.index.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", f"sha256:{sha256(content).hexdigest()}")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", contents
        server.shutdown()


def test_the_registrys_digest(endpoint: Endpoint, registry: tuple[str, dict[str, bytes]]) -> None:
    address, contents = registry
    contents["nvidia/cuda:13"] = index("linux/amd64", "linux/arm64/v8")
    digest = f"sha256:{sha256(contents['nvidia/cuda:13']).hexdigest()}"
    for platform in ("linux/amd64", "linux/arm64"):
        assert installed.resolve_base(endpoint, f"{address}/nvidia/cuda:13", platform) == digest
    assert installed.resolve_base(endpoint, f"{address}/nvidia/cuda@{digest}", "linux/arm64") == digest
    contents["nvidia/cuda:13"] = index("linux/arm64")
    assert installed.resolve_base(endpoint, f"{address}/nvidia/cuda:13", "linux/arm64") != digest


def test_a_platform_that_the_registry_has_not(endpoint: Endpoint, registry: tuple[str, dict[str, bytes]]) -> None:
    address, contents = registry
    contents["a/b:1"] = index("linux/amd64", "linux/ppc64le")
    with pytest.raises(SourceError, match="is for linux/amd64, linux/ppc64le, not for linux/arm64") as caught:
        installed.resolve_base(endpoint, f"{address}/a/b:1", "linux/arm64")
    assert caught.value.exit_code == 6


def test_a_tag_that_nobody_has(endpoint: Endpoint, registry: tuple[str, dict[str, bytes]]) -> None:
    with pytest.raises(SourceError, match="manifest unknown"):
        installed.resolve_base(endpoint, f"{registry[0]}/a/b:none", "linux/arm64")


def test_no_registry_there(endpoint: Endpoint) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(SourceError, match=r"cannot be resolved: .*refused"):
            installed.resolve_base(endpoint, f"127.0.0.1:{taken.getsockname()[1]}/a/b:1", "linux/arm64")


def test_a_registry_that_never_answers_costs_seconds(endpoint: Endpoint) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(SourceError, match="has not answered for 1 seconds"):
            installed.resolve_base(endpoint, f"127.0.0.1:{silent.getsockname()[1]}/a/b:1", "linux/arm64", wait=1)
        assert time.monotonic() - began < 300


def test_an_image_that_only_the_engine_has(
    endpoint: Endpoint, repository: str, build: Build, registry: tuple[str, dict[str, bytes]]
) -> None:
    name = f"{registry[0]}/{repository}:1"
    build(name, "FROM scratch\nCOPY Dockerfile /\n")
    try:
        image = images.inspect_image(endpoint, name)
        assert image is not None
        assert installed.resolve_base(endpoint, name, image.platform) == f"local:{images.fingerprint(image)}"
        assert installed.local_fingerprint(endpoint, name) == images.fingerprint(image)
        other = "linux/s390x"
        with pytest.raises(SourceError, match=f"is for {image.platform}, but {other} is required"):
            installed.resolve_base(endpoint, name, other)
    finally:
        images.remove_image(endpoint, name)
    assert installed.local_fingerprint(endpoint, name) is None


def test_a_pinned_base_of_this_engine_that_is_gone_is_not_called_another_image(endpoint: Endpoint) -> None:
    pin = BasePin("builder-test-gone:1", f"local:sha256:{'0' * 64}")
    with pytest.raises(SourceError, match="lacks the pinned image of builder-test-gone:1") as caught:
        resolver.ensure_base_present(endpoint, pin, "linux/amd64", lambda _: None)
    assert "`docker load`" in caught.value.hint


def test_a_registry_without_an_answer_is_reported_when_the_engines_image_is_pinned(
    endpoint: Endpoint, repository: str, build: Build, registry: tuple[str, dict[str, bytes]]
) -> None:
    said: list[object] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{taken.getsockname()[1]}"
        for address in (registry[0], silent):
            name = f"{address}/{repository}:1"
            build(name, "FROM scratch\nCOPY Dockerfile /\n")
            try:
                image = images.inspect_image(endpoint, name)
                assert image is not None
                pinned = installed.resolve_base(endpoint, name, image.platform, said.append)
                assert pinned == f"local:{images.fingerprint(image)}"
            finally:
                images.remove_image(endpoint, name)
    # The other registry answered that it does not have the image.
    assert len(said) == 1
    assert isinstance(message := said[0], Message)
    assert f"{silent}/{repository}:1 is pinned to the image in this engine" in message.text
    assert "refused" in message.text
