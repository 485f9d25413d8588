"""The engine that environment variables and files select."""

from __future__ import annotations

import json
import socket
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import EngineError
from builder.engine import client
from builder.engine.client import DEFAULT_HOST, Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator


PLUGIN = ("docker", "buildx")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with an empty home and no private engine."""
    return {"HOME": str(tmp_path), "BUILDER_ENGINE_RUN": str(tmp_path / "no-engine")}


@pytest.fixture
def private(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user with a private engine, its socket included."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "docker.sock"))
        home = str(tmp_path / "home")
        yield {"HOME": home, "BUILDER_ENGINE_RUN": str(tmp_path), "BUILDER_ENGINE_HOME": "/srv/engine"}


def write_context(config: Path, name: str, docker: object) -> Path:
    """Writes a context as `docker context create` does; returns the folder of its TLS files."""
    folder = sha256(name.encode()).hexdigest()
    meta = config / "contexts" / "meta" / folder / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": docker}}))
    return config / "contexts" / "tls" / folder / "docker"


def choose(config: Path, name: str) -> None:
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.json").write_text(json.dumps({"currentContext": name}))


def test_nothing_said(home: dict[str, str]) -> None:
    assert client.find_endpoint(home) == Endpoint(DEFAULT_HOST, PLUGIN, "Docker's default")


def test_docker_host_wins_over_everything(private: dict[str, str]) -> None:
    engine = client.find_endpoint({**private, "DOCKER_HOST": "ssh://me@spark", "DOCKER_CONTEXT": "nonesuch"})
    assert (engine.host, engine.buildx, engine.origin) == ("ssh://me@spark", PLUGIN, "DOCKER_HOST")


def test_the_private_engine_has_its_own_buildx(private: dict[str, str]) -> None:
    engine = client.find_endpoint(private)
    assert engine.host == f"unix://{private['BUILDER_ENGINE_RUN']}/docker.sock"
    assert engine.buildx == ("/srv/engine/bin/docker-buildx",)
    assert client.find_endpoint({**private, "DOCKER_HOST": engine.host}).buildx == engine.buildx


def test_a_socket_that_is_not_there_is_not_used(home: dict[str, str]) -> None:
    assert client.find_endpoint(home).host == DEFAULT_HOST


def test_docker_context_wins_over_the_private_engine(private: dict[str, str]) -> None:
    write_context(Path(private["HOME"]) / ".docker", "spark", {"Host": "tcp://spark:2375"})
    engine = client.find_endpoint({**private, "DOCKER_CONTEXT": "spark"})
    assert (engine.host, engine.tls) == ("tcp://spark:2375", "")
    assert "DOCKER_CONTEXT" in engine.origin


def test_the_private_engine_wins_over_the_current_context(private: dict[str, str]) -> None:
    config = Path(private["HOME"]) / ".docker"
    write_context(config, "spark", {"Host": "tcp://spark:2375"})
    choose(config, "spark")
    assert client.find_endpoint(private).origin == "the private engine of scripts/engine"


def test_current_context(home: dict[str, str]) -> None:
    config = Path(home["HOME"]) / ".docker"
    tls = write_context(config, "rootless", {"Host": "unix:///run/user/1000/docker.sock", "SkipTLSVerify": False})
    choose(config, "rootless")
    engine = client.find_endpoint(home)
    assert (engine.host, engine.tls) == ("unix:///run/user/1000/docker.sock", "")
    assert str(config / "config.json") in engine.origin
    tls.mkdir(parents=True)
    assert client.find_endpoint(home).tls == str(tls)


def test_docker_config_moves_the_folder(home: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "elsewhere"
    write_context(config, "spark", {"Host": "tcp://spark:2376", "SkipTLSVerify": True})
    choose(config, "spark")
    engine = client.find_endpoint({**home, "DOCKER_CONFIG": str(config)})
    assert (engine.host, engine.tls_verify) == ("tcp://spark:2376", False)


def test_the_default_context_is_the_default_socket(home: dict[str, str]) -> None:
    choose(Path(home["HOME"]) / ".docker", "default")
    assert client.find_endpoint(home).host == DEFAULT_HOST
    assert client.find_endpoint({**home, "DOCKER_CONTEXT": "default"}).host == DEFAULT_HOST


def test_an_unknown_context_is_named(home: dict[str, str]) -> None:
    with pytest.raises(EngineError, match=r"context `gone` \(from DOCKER_CONTEXT\)") as caught:
        client.find_endpoint({**home, "DOCKER_CONTEXT": "gone"})
    assert "docker context ls" in caught.value.hint


@pytest.mark.parametrize("docker", [None, [], {}, {"Host": 7}])
def test_a_context_without_an_engine_is_named(home: dict[str, str], docker: object) -> None:
    write_context(Path(home["HOME"]) / ".docker", "k8s", docker)
    with pytest.raises(EngineError, match="k8s"):
        client.find_endpoint({**home, "DOCKER_CONTEXT": "k8s"})


def test_a_damaged_config_is_named(home: dict[str, str]) -> None:
    config = Path(home["HOME"]) / ".docker" / "config.json"
    config.parent.mkdir()
    config.write_text("{")
    with pytest.raises(EngineError, match=r"config\.json is not valid JSON"):
        client.find_endpoint(home)


def test_a_config_that_is_no_object_is_ignored(home: dict[str, str]) -> None:
    config = Path(home["HOME"]) / ".docker" / "config.json"
    config.parent.mkdir()
    config.write_text("[]")
    assert client.find_endpoint(home).host == DEFAULT_HOST


def test_tls_of_docker_host(home: dict[str, str]) -> None:
    environ = {**home, "DOCKER_HOST": "tcp://spark:2376", "DOCKER_TLS_VERIFY": "1"}
    assert client.find_endpoint(environ).tls == str(Path(home["HOME"]) / ".docker")
    engine = client.find_endpoint({**environ, "DOCKER_CERT_PATH": "/certs"})
    assert (engine.tls, engine.tls_verify) == ("/certs", True)
    assert not client.find_endpoint({**home, "DOCKER_HOST": "tcp://spark:2376", "DOCKER_TLS": "1"}).tls_verify


def test_the_environment_of_buildx() -> None:
    plain = Endpoint("unix:///x.sock", PLUGIN, "a test")
    assert client.environment(plain) == {"DOCKER_HOST": "unix:///x.sock", "BUILDX_BUILDER": "default"}
    secure = client.environment(Endpoint("tcp://spark:2376", PLUGIN, "a test", "/certs"))
    assert (secure["DOCKER_CERT_PATH"], secure["DOCKER_TLS_VERIFY"]) == ("/certs", "1")


def test_a_node_is_an_address_or_a_context(home: dict[str, str], tmp_path: Path) -> None:
    expected = Endpoint("ssh://me@spark2", PLUGIN, "node spark2", node="spark2")
    assert client.of_node(home, "spark2", "ssh://me@spark2") == expected
    write_context(tmp_path / ".docker", "office", {"Host": "tcp://10.0.0.3:2376", "SkipTLSVerify": False})
    engine = client.of_node(home, "spark3", "office")
    assert (engine.host, engine.tls_verify) == ("tcp://10.0.0.3:2376", True)
    with pytest.raises(EngineError, match=r"`nowhere` \(from node spark4\) does not exist"):
        client.of_node(home, "spark4", "nowhere")


# JSON lines, read in whatever pieces they come.


def test_objects_however_the_stream_is_cut() -> None:
    stream = b'{"a": 1}\r\n\n{"b": "\xc3\xbc"}\n{"c": 3}'
    for size in (1, 3, 100):
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert list(client.objects(pieces)) == [{"a": 1}, {"b": "ü"}, {"c": 3}]


def test_a_stream_that_broke_off() -> None:
    objects = client.objects([b'{"a": 1}\n{"b": '])
    assert next(objects) == {"a": 1}
    with pytest.raises(EngineError, match="ended early"):
        next(objects)


@pytest.mark.parametrize(
    ("line", "value"), [('{"a": 1}\n', {"a": 1}), (b'{"a": 1}', {"a": 1}), ("[1]", None), ("text", None), ("", None)]
)
def test_a_line_that_may_be_text(line: str | bytes, value: dict[str, int] | None) -> None:
    assert client.parse_json_line(line) == value


# A stream of frames, cut at any place.

LINES = ["one\n", "", "grün 🙂\n", "x" * 70_000]
STREAM = b"".join(
    bytes([1 + number % 2, 0, 0, 0]) + len(line.encode()).to_bytes(4) + line.encode()
    for number, line in enumerate(LINES)
)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 13, 100_000])
def test_the_frames_are_the_same_wherever_the_stream_is_cut(size: int) -> None:
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [content.decode() for content in client.payloads(pieces)] == LINES


def test_what_broke_off_is_given_as_far_as_it_came() -> None:
    assert client.text(STREAM[:-5]) == "".join(LINES)[:-5]
    assert client.text(STREAM[:10]) == "on"
    assert client.text(STREAM[:5]) == ""
