"""The credentials that engines get for registries."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.engine import registry

if TYPE_CHECKING:
    from pathlib import Path


def test_the_login_comes_from_dockers_own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login = base64.b64encode(b"somebody:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"registry.example": {"auth": login}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    header = registry.auth_headers("registry.example/vllm:1")["X-Registry-Auth"]
    decoded = json.loads(base64.urlsafe_b64decode(header))
    assert (decoded["username"], decoded["password"]) == ("somebody", "secret")
    assert registry.auth_headers("debian:bookworm-slim") == {}


@pytest.mark.parametrize(
    "content",
    [
        '{"credsStore": "no-such-helper"}',
        '{"auths": {"registry.example": {"auth": "%%%"}}}',
        '{"auths": {"registry.example": {"auth": "YWxpY2U="}}}',
        '{"auths": ["registry.example"]}',
        "{",
    ],
)
def test_a_login_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(SourceError, match="the login for the registry of .* cannot be read"):
        registry.auth_headers("registry.example/vllm:1")


def test_without_a_login_for_the_registry_the_slow_sdk_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setitem(sys.modules, "docker", None)
    assert registry.auth_headers("127.0.0.1:5000/vllm:1") == {}
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": "YTpi"}}}))
    assert registry.auth_headers("127.0.0.1:5000/vllm:1") == {}
    for with_login in ("debian:bookworm-slim", "index.docker.io/org/name"):
        with pytest.raises(ImportError, match="docker"):
            registry.auth_headers(with_login)
