"""An image whose indexes are nested, as a registry answers with it."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import SourceError
from builder.engine import registry
from tests import workspaces
from tests.web_server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.web_server import Web


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server of manifests; it is asked without the engine, which only says whether to use TLS."""
    monkeypatch.setattr("builder.engine.registry._is_secure", lambda *_: False)
    with serving() as server:
        server.files["/v2/base/tags/list"] = b"{}"
        yield server


def put(web: Web, manifest: dict[str, Any]) -> str:
    content = json.dumps({**manifest, "mediaType": "x"}).encode()
    digest = f"sha256:{sha256(content).hexdigest()}"
    web.files[f"/v2/base/manifests/{digest}"] = content
    return digest


def nested(web: Web, levels: int) -> str:
    """An image on so many levels; each index names the next level's manifest a hundred times."""
    config = {"digest": f"sha256:{'a' * 64}", "size": 1}
    digest = put(web, {"config": config, "layers": []})
    for _ in range(levels - 1):
        digest = put(web, {"manifests": [{"digest": digest}] * 100})
    return digest


def test_each_manifest_is_read_once_and_deep_nesting_is_refused(web: Web) -> None:
    repository, received = f"{web.url.removeprefix('http://')}/base", list[str]()

    def receive(digest: str, _size: int, _pieces: Iterator[bytes]) -> None:
        received.append(digest)

    top = registry.download_image(workspaces.NO_ENGINE, repository, nested(web, 3), receive)
    assert (len(received), received[-1]) == (4, top.digest)
    assert sum("/manifests/" in path for path in web.requests) == 3
    with pytest.raises(SourceError, match="its indexes are nested on more than 3 levels"):
        registry.download_image(workspaces.NO_ENGINE, repository, nested(web, 4), receive)
