"""The credentials that engines get for registries."""

from __future__ import annotations

import base64
import json
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
    ],
)
def test_a_login_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(SourceError, match="the login for the registry of .* cannot be read"):
        registry.auth_headers("registry.example/vllm:1")
