"""Artifacts beside an image: in a registry that lists them itself, and in ones that lie."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from builder.engine.client.endpoint import Endpoint
from builder.engine.registry import referrers
from builder.engine.registry.referrers import Artifact
from builder.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.engine

KIND = "application/vnd.in-toto+json"
INDEX = "application/vnd.oci.image.index.v1+json"
NOTES = {"in-toto.io/predicate-type": "https://example.org/test/v1"}
IMAGE = json.dumps({"schemaVersion": 2}).encode()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Modern:
    """A registry in memory that lists referrers itself. ``location`` is where it wants blobs sent, ``lies`` what it
    answers instead, by the end of the path."""

    port: int = 0
    content: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    location: str = "/v2/a/b/blobs/uploads/1?state=x"
    lies: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    @property
    def repository(self) -> str:
        return f"127.0.0.1:{self.port}/a/b"

    def answer(self, method: str, path: str, kind: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.requests.append(f"{method} {path}")
        place, _, query = path.partition("?")
        name = place.rpartition("/")[2]
        for end, lie in self.lies.items():
            if method == "GET" and place.endswith(end):
                return 200, {"Content-Type": INDEX}, lie
        if method == "POST":
            return 202, {"Location": self.location}, b""
        if method == "PUT" and "/uploads/" in place:
            self.content[query.rpartition("digest=")[2]] = ("application/octet-stream", body)
            return 201, {}, b""
        if method == "PUT":
            self.content[name] = (kind, body)
            return 201, {"OCI-Subject": json.loads(body)["subject"]["digest"]}, b""
        if "/referrers/" in place:
            listed = [
                {"mediaType": kind, "digest": digest, "size": len(text), "artifactType": KIND}
                for digest, (kind, text) in self.content.items()
                if kind.endswith("manifest.v1+json") and json.loads(text).get("subject", {}).get("digest") == name
            ]
            return 200, {"Content-Type": INDEX}, json.dumps({"manifests": listed}).encode()
        if name in self.content:
            kind, text = self.content[name]
            return 200, {"Content-Type": kind}, text
        return (200, {}, b"") if place == "/v2/" else (404, {}, b"")


@contextmanager
def serving(registry: Modern) -> Iterator[Modern]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def relay(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = registry.answer(
                self.command, self.path, self.headers.get("Content-Type", ""), body
            )
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    for method in ("GET", "HEAD", "PUT", "POST"):
        setattr(Handler, f"do_{method}", Handler.relay)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def modern() -> Iterator[Modern]:
    image = {digest_of(IMAGE): ("application/vnd.oci.image.manifest.v1+json", IMAGE)}
    with serving(Modern(content=image)) as registry:
        yield registry


def attached(endpoint: Endpoint, registry: Modern, largest: int = 1000) -> tuple[bytes, ...]:
    return referrers.attached(endpoint, registry.repository, digest_of(IMAGE), KIND, NOTES, largest)


def test_a_registry_that_lists_artifacts_needs_no_tag(endpoint: Endpoint, modern: Modern) -> None:
    artifact = Artifact(KIND, NOTES, (b"one", b"two"))
    assert attached(endpoint, modern) == ()
    assert referrers.attach(endpoint, modern.repository, digest_of(IMAGE), artifact)
    assert not referrers.attach(endpoint, modern.repository, digest_of(IMAGE), artifact)
    assert attached(endpoint, modern) == (b"one", b"two")
    assert not [each for each in modern.requests if "/manifests/sha256-" in each and each.startswith("PUT")]
    other = Artifact(KIND, {"in-toto.io/predicate-type": "https://example.org/other"}, (b"three",))
    assert referrers.attach(endpoint, modern.repository, digest_of(IMAGE), other)
    assert attached(endpoint, modern) == (b"one", b"two")


def test_nothing_goes_to_another_host(endpoint: Endpoint, modern: Modern) -> None:
    with serving(Modern()) as elsewhere:
        modern.location = f"http://{elsewhere.repository}/blobs/uploads/1"
        with pytest.raises(TransferError, match="no blob is taken"):
            referrers.attach(endpoint, modern.repository, digest_of(IMAGE), Artifact(KIND, NOTES, (b"one",)))
        assert elsewhere.requests == []


@pytest.mark.parametrize(
    "lie",
    [
        b"",
        b"[]",
        b"null",
        b'{"manifests": 1}',
        b'{"manifests": [{"artifactType": "application/vnd.in-toto+json"}]}',
        b'{"manifests": [{"artifactType": "application/vnd.in-toto+json", "mediaType": "x", "digest": "../x",'
        b' "size": 1}]}',
        b"[" * 100_000,
        b" " * (5 * 1024 * 1024),
    ],
)
def test_a_listing_that_is_none_is_told(endpoint: Endpoint, modern: Modern, lie: bytes) -> None:
    modern.lies = {f"/referrers/{digest_of(IMAGE)}": lie}
    with pytest.raises(TransferError):
        attached(endpoint, modern)


def test_other_content_than_the_digest_says_is_not_taken(endpoint: Endpoint, modern: Modern) -> None:
    referrers.attach(endpoint, modern.repository, digest_of(IMAGE), Artifact(KIND, NOTES, (b"one",)))
    modern.lies = {f"/blobs/{digest_of(b'one')}": b"two"}
    with pytest.raises(TransferError, match="has other content"):
        attached(endpoint, modern)
    modern.lies = {f"/blobs/{digest_of(b'one')}": b"one" * 1000}
    with pytest.raises(TransferError, match="more than 1,000 bytes"):
        attached(endpoint, modern)
    modern.lies = {}
    with pytest.raises(TransferError, match="larger than"):
        attached(endpoint, modern, largest=2)


def test_an_image_that_is_not_there_gets_nothing(endpoint: Endpoint, modern: Modern) -> None:
    with pytest.raises(TransferError, match="is not there"):
        referrers.attach(endpoint, modern.repository, f"sha256:{0:064x}", Artifact(KIND, NOTES, (b"one",)))
