"""The versions of engine and buildx that are supported."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import EngineError
from builder.engine import machine
from builder.engine.client import Endpoint
from tests.engine.client.test_api import answering, serving

if TYPE_CHECKING:
    from pathlib import Path


def fake_buildx(folder: Path, output: str, code: int = 0) -> tuple[str, ...]:
    program = folder / "buildx"
    program.write_text(f"#!/bin/sh\necho '{output}'\nexit {code}\n")
    program.chmod(0o755)
    return (str(program),)


@pytest.mark.engine
def test_the_real_engine_will_do(endpoint: Endpoint) -> None:
    installed = machine.require_supported(endpoint)
    assert int(installed.engine.split(".")[0]) >= 23
    assert installed.buildx[0].isdigit()
    assert installed.store in {"containerd", "classic"}
    assert installed.platform in {"linux/amd64", "linux/arm64"}


def test_an_old_engine(tmp_path: Path) -> None:
    answer = b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps({"Version": "20.10.24+dfsg1", "ApiVersion": "1.41"}).encode()
    with (
        serving(tmp_path / "s", answering(answer)) as endpoint,
        pytest.raises(EngineError, match=r"is 20\.10\.24") as caught,
    ):
        machine.require_supported(endpoint)
    assert "docker-ce" in caught.value.hint
    assert "DGX OS" in caught.value.hint


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        machine.require_supported(Endpoint(f"unix://{tmp_path}/none", (), "a test"))
    assert caught.value.exit_code == 5


@pytest.mark.engine
def test_an_old_buildx(endpoint: Endpoint, tmp_path: Path) -> None:
    old = replace(
        endpoint,
        buildx=fake_buildx(tmp_path, "github.com/docker/buildx v0.13.1 788433953af10f2a698f5c07611dddce2e08c7a0"),
    )
    with pytest.raises(EngineError, match=r"buildx is 0\.13\.1; 0\.14 is the oldest"):
        machine.require_supported(old)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("github.com/docker/buildx v0.29.1 a32761aeb3debd39be1eca514af3693af0db334b", "0.29.1"),
        ("github.com/docker/buildx 0.29.1+ds1 ", "0.29.1+ds1"),
        ("github.com/docker/buildx v0.14.0-docker 1", "0.14.0-docker"),
    ],
)
def test_how_versions_are_written(tmp_path: Path, output: str, version: str) -> None:
    assert machine.buildx(Endpoint("unix:///x", fake_buildx(tmp_path, output), "a test")) == version


@pytest.mark.parametrize(
    ("output", "code"), [("docker: unknown command: docker buildx", 1), ("0.29.1", 125), ("hello", 0)]
)
def test_no_buildx(tmp_path: Path, output: str, code: int) -> None:
    with pytest.raises(EngineError, match="buildx plugin") as caught:
        machine.buildx(Endpoint("unix:///x", fake_buildx(tmp_path, output, code), "a test"))
    assert "docker-buildx-plugin" in caught.value.hint


def test_no_docker_at_all(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="does not run"):
        machine.buildx(Endpoint("unix:///x", (str(tmp_path / "docker"), "buildx"), "a test"))
