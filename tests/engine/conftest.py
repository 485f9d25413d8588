"""The real engine by other addresses, and unique names for images."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.engine import bake_run, containers, images
from builder.engine.bake_run import BakeResult
from builder.engine.build_log import Event
from builder.engine.client import Endpoint
from tests import shared
from tests.engine.relay import Relay, over_tcp, relaying

if TYPE_CHECKING:
    from pathlib import Path


Build = Callable[..., BakeResult]

_DIAL = """\
#!{python}
import os, socket, threading
engine = socket.socket(socket.AF_UNIX)
engine.connect({path!r})
def pump():
    while data := os.read(0, 65536):
        engine.sendall(data)
    engine.shutdown(socket.SHUT_WR)
threading.Thread(target=pump, daemon=True).start()
while data := engine.recv(65536):
    while data:
        data = data[os.write(1, data):]
"""


@pytest.fixture
def repository(endpoint: Endpoint) -> Iterator[str]:
    """A repository of this test's own; its images, and containers with its label, are removed when the test ends."""
    name = shared.unique_name()
    yield name
    containers.remove_labelled(endpoint, name)
    for tag in images.image_tags(endpoint, [name]):
        images.remove_image(endpoint, tag)


@pytest.fixture
def build(endpoint: Endpoint, tmp_path: Path) -> Build:
    """Builds a Dockerfile: ``build(name, dockerfile, files={...}, …)``, with further arguments of bake."""

    def run(
        name: str,
        dockerfile: str,
        files: dict[str, str] | None = None,
        target: str = "image",
        secrets: Sequence[str] = (),
        contexts: Mapping[str, str] | None = None,
        on_event: Callable[[Event], None] = lambda _: None,
        environ: Mapping[str, str] = os.environ,
    ) -> BakeResult:
        directory = tmp_path / "build"
        more = {"secret": list(secrets), "contexts": dict(contexts or {})}
        write_build(directory, dockerfile, files or {}, more)
        return bake_run.bake_targets(
            endpoint,
            directory,
            names={target: name},
            log_path=tmp_path / "log",
            on_event=on_event,
            environ=environ,
        )[target]

    return run


def write_build(
    directory: Path, dockerfile: str, files: dict[str, str], more: Mapping[str, object] | None = None
) -> None:
    """Writes a build directory with one target, ``image``, and ``more`` keys of it."""
    directory.mkdir(exist_ok=True)
    bake_file = json.dumps({"target": {"image": {"context": ".", **(more or {})}}})
    for name, content in {"Dockerfile": dockerfile, "bake.json": bake_file, **files}.items():
        (directory / name).write_text(content)


@pytest.fixture
def relay(endpoint: Endpoint, tmp_path: Path) -> Iterator[tuple[Endpoint, Relay]]:
    """The engine behind a relay that can be cut."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "relay.sock"))
    with relaying(listening, endpoint.host.removeprefix("unix://")) as relay:
        yield replace(endpoint, host=f"unix://{tmp_path}/relay.sock"), relay


@pytest.fixture
def tcp(endpoint: Endpoint) -> Iterator[str]:
    """The engine's address over TCP."""
    with over_tcp(endpoint.host) as address:
        yield address


@pytest.fixture
def ssh(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine's address over ssh, by an `ssh` on PATH that dials the engine as `docker system dial-stdio` would."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(_DIAL.format(python=sys.executable, path=endpoint.host.removeprefix("unix://")))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return f"ssh://somebody@{secrets.token_hex(4)}.invalid"
