"""Compose files, read by Docker's compose itself."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.definitions.container import ContainerSettings, PublishedPort
from builder.serving import compose
from tests import projects
from tests.serving.exports import settings

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow

COMPOSE = projects.REPOSITORY_ROOT / "scripts/compose"


def configured(folder: Path, wanted: ContainerSettings, home: str = "/home/ann", **environ: str) -> dict[str, Any]:
    """The service as compose reads it from the file, for a user whose home is /home/bob."""
    (folder / "compose.yaml").write_text(compose.render_compose(wanted, home), encoding="utf-8")
    argv = [str(COMPOSE), "-f", str(folder / "compose.yaml"), "config", "--format", "json"]
    kept = {key: value for key, value in os.environ.items() if key != "HF_TOKEN"}
    done = subprocess.run(argv, capture_output=True, text=True, env={**kept, "HOME": "/home/bob", **environ})
    assert done.returncode == 0, done.stderr
    service: dict[str, Any] = json.loads(done.stdout)["services"]["builder-test"]
    return service


def undoubled(value: Any) -> Any:
    """`config` prints what could be read as compose file again, with every $ doubled."""
    return json.loads(json.dumps(value).replace("$$", "$"))


def test_compose_reads_every_value_as_it_was_meant(tmp_path: Path) -> None:
    wanted = settings.hostile()
    service = configured(tmp_path, wanted)
    assert service["entrypoint"] == []
    assert undoubled(service["command"]) == list(wanted.argv)
    assert undoubled(service["environment"]) == {**wanted.env, "HF_TOKEN": None}
    assert undoubled(service["labels"]) == wanted.labels
    assert undoubled(service["healthcheck"]["test"]) == ["CMD", "true", *settings.HOSTILE]
    assert undoubled({v["source"]: v["target"] for v in service["volumes"]}) == {
        "/home/bob/.cache/a b": "/root/.cache/x",
        "/srv/$models": "/root/models",
    }
    modes = [
        (volume.get("read_only", False), volume["bind"].get("create_host_path", False)) for volume in service["volumes"]
    ]
    assert modes == [(False, True), (True, False)]
    assert (service["image"], service["pull_policy"]) == ("small:1", "never")
    assert (service["restart"], service["stop_grace_period"], service["init"]) == ("unless-stopped", "1m0s", True)
    assert (service["network_mode"], service["ipc"], service["shm_size"]) == ("host", "private", "67108864")
    assert [device["source"] for device in service["devices"]] == ["/dev/null"]
    assert (service["cap_add"], service["pids_limit"]) == (["IPC_LOCK"], 4096)
    assert (service["mem_limit"], service["memswap_limit"]) == (str(1 << 30), str(2 << 30))
    assert "deploy" not in service


def test_a_secret_comes_from_the_environment(tmp_path: Path) -> None:
    assert configured(tmp_path, settings.hostile(), HF_TOKEN="abc$d")["environment"]["HF_TOKEN"] == "abc$$d"
    assert "abc" not in (tmp_path / "compose.yaml").read_text(encoding="utf-8")


def test_a_gpu_is_reserved(tmp_path: Path) -> None:
    service = configured(tmp_path, replace(settings.hostile(), gpus=True))
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", -1, ["gpu"])


def test_ports_are_published_where_the_network_is_not_the_host_s(tmp_path: Path) -> None:
    service = configured(
        tmp_path, replace(settings.hostile(), network="bridge", ports=(PublishedPort(8001, 8001),), health=None)
    )
    assert [(port["target"], port["published"]) for port in service["ports"]] == [(8001, "8001")]
    assert "healthcheck" not in service


def test_ports_of_one_address_and_other_protocols(tmp_path: Path) -> None:
    ports = (PublishedPort(9000, 8000, "127.0.0.1"), PublishedPort(53, 53, protocol="udp"), PublishedPort(1, 2, "::1"))
    service = configured(tmp_path, replace(settings.hostile(), network="bridge", ports=ports))
    published = [(p.get("host_ip", ""), p["published"], p["target"], p["protocol"]) for p in service["ports"]]
    assert published == [("127.0.0.1", "9000", 8000, "tcp"), ("", "53", 53, "udp"), ("::1", "1", 2, "tcp")]
