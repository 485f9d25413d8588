"""The containers that a compose file and a script really make, on a real engine."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.definitions.container import ContainerSettings
from builder.engine import client, containers
from builder.engine.client import Endpoint, environment
from builder.serving import exports
from builder.serving import starting as api_format
from tests import projects
from tests.conftest import Command
from tests.serving.exports import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.engine

SCRIPTS = projects.REPOSITORY_ROOT / "scripts"


@pytest.fixture
def wanted(builder: Command, repository: str, endpoint: Endpoint, tmp_path: Path) -> Iterator[ContainerSettings]:
    """Settings on an image that is there; the container is removed in the end."""
    builder("build", "small")
    hostile = settings.hostile(f"{repository}:1")
    yield replace(hostile, name=repository, mounts=(replace(hostile.mounts[0], source=f"{tmp_path}/home/a b"),))
    query: dict[str, str | int] = {"filters": json.dumps({"label": ["builder.test.0"], "name": [repository]}), "all": 1}
    for container in client.listed(endpoint, "/containers/json", query=query):
        client.request(endpoint, "DELETE", f"/containers/{container['Id']}", query={"force": 1, "v": 1})


def run(endpoint: Endpoint, home: Path, *argv: str) -> None:
    """Runs a command as a user whose home is ``home``, with docker on the PATH."""
    environ = {**os.environ, **environment(endpoint), "HOME": str(home), "HF_TOKEN": "secret"}
    line = ["bash", "-c", 'eval "$("$0/engine" env)"; exec "$@"', str(SCRIPTS), *argv]
    done = subprocess.run(line, capture_output=True, text=True, env=environ, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr


def container(endpoint: Endpoint, name: str) -> dict[str, Any]:
    inspected: dict[str, Any] = client.request(endpoint, "GET", f"/containers/{name}/json")
    return inspected


def facts(inspected: dict[str, Any]) -> dict[str, Any]:
    """The facts that the settings decide, as the engine has them."""
    host, config = inspected["HostConfig"], inspected["Config"]
    environ = dict(entry.split("=", 1) for entry in config["Env"])
    return {
        "argv": [inspected["Path"], *inspected["Args"]],
        "image": config["Image"],
        "env": {name: value for name, value in environ.items() if name != "PATH"},
        "labels": {name: value for name, value in config["Labels"].items() if name.startswith("builder.test.")},
        "mounts": {mount["Source"]: mount["Destination"] for mount in inspected["Mounts"]},
        "modes": (host["NetworkMode"], host["IpcMode"], host["ShmSize"], host["Init"], host["RestartPolicy"]["Name"]),
        "ulimits": {limit["Name"]: limit["Soft"] for limit in host["Ulimits"]},
        "devices": [device["PathInContainer"] for device in host["Devices"]],
        "capabilities": [name.removeprefix("CAP_") for name in host["CapAdd"]],
        "limits": (host["Memory"], host["MemorySwap"], host["PidsLimit"]),
        "stop": (config["StopSignal"], config["StopTimeout"]),
        "gpus": host["DeviceRequests"],
    }


def expected(wanted: ContainerSettings, home: Path) -> dict[str, Any]:
    return {
        "argv": list(wanted.argv),
        "image": wanted.image,
        "env": {**wanted.env, "HF_TOKEN": "secret"},
        "labels": wanted.labels,
        "mounts": {f"{home}/a b": "/root/.cache/x"},
        "modes": ("host", "private", 64 * 1024 * 1024, True, "unless-stopped"),
        "ulimits": {"nofile": 4096},
        "devices": ["/dev/null"],
        "capabilities": ["IPC_LOCK"],
        "limits": (1 << 30, 2 << 30, 4096),
        "stop": ("SIGTERM", 60),
        "gpus": None,
    }


@pytest.mark.long
def test_a_compose_file_makes_the_container_that_was_meant(
    wanted: ContainerSettings, endpoint: Endpoint, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    file = tmp_path / "compose.yaml"
    file.write_text(exports.render_compose(wanted, str(home)), encoding="utf-8")
    run(endpoint, home, str(SCRIPTS / "compose"), "-f", str(file), "create")
    inspected = container(endpoint, f"{wanted.name}-{wanted.name}-1")
    assert facts(inspected) == expected(wanted, home)
    assert wanted.health is not None
    assert inspected["Config"]["Healthcheck"]["Test"] == ["CMD", *wanted.health.argv]


def test_a_script_starts_the_container_that_was_meant(
    wanted: ContainerSettings, endpoint: Endpoint, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    file = tmp_path / "serve.sh"
    file.write_text(exports.render_script(wanted, str(home)), encoding="utf-8")
    run(endpoint, home, "sh", str(file))
    inspected = container(endpoint, wanted.name)
    assert inspected["State"]["Running"]
    assert facts(inspected) == expected(wanted, home)


def test_the_engine_itself_is_asked_for_the_container_that_was_meant(
    wanted: ContainerSettings, endpoint: Endpoint, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / "a b").mkdir(parents=True)
    body = api_format.request_body(wanted, {"HF_TOKEN": "secret"})
    made = containers.create(endpoint, wanted.name, body)
    inspected = container(endpoint, wanted.name)
    assert facts(inspected) == {**expected(wanted, home), "gpus": []}
    assert wanted.health is not None
    assert inspected["Config"]["Healthcheck"]["Test"] == ["CMD", *wanted.health.argv]
    containers.start_service(endpoint, made.id)
    assert container(endpoint, wanted.name)["State"]["Running"]
