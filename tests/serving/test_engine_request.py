"""The request to an engine; test_on_engine tests that it creates the intended container."""

from __future__ import annotations

from dataclasses import replace

from builder.definitions.container import PublishedPort
from builder.serving import starting
from tests.serving.exports import settings

WANTED = settings.hostile()


def test_secrets_come_from_the_environment_and_only_where_they_are_set() -> None:
    assert "HF_TOKEN=secret" in starting.request_body(WANTED, {"HF_TOKEN": "secret", "OTHER": "x"})["Env"]
    assert not [
        entry
        for entry in starting.request_body(WANTED, {"OTHER": "x"})["Env"]
        if entry.startswith(("HF_TOKEN", "OTHER"))
    ]


def test_gpus_ports_and_no_health_check() -> None:
    wanted = replace(
        WANTED, gpus=True, network="bridge", ports=(PublishedPort(8000, 8000),), health=None, shm_size="16g"
    )
    body = starting.request_body(wanted, {})
    assert body["HostConfig"]["DeviceRequests"] == [{"Count": -1, "Capabilities": [["gpu"]]}]
    assert body["HostConfig"]["PortBindings"] == {"8000/tcp": [{"HostPort": "8000"}]}
    assert body["ExposedPorts"] == {"8000/tcp": {}}
    assert body["HostConfig"]["ShmSize"] == 16 << 30
    assert body["Healthcheck"] == {"Test": ["NONE"]}


def test_shared_memory_of_the_host_has_no_size() -> None:
    assert "ShmSize" not in starting.request_body(replace(WANTED, ipc="host", shm_size=""), {})["HostConfig"]


def test_limits_devices_and_capabilities() -> None:
    host = starting.request_body(WANTED, {})["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (1 << 30, 2 << 30, 4096)
    assert host["CapAdd"] == ["IPC_LOCK"]
    assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/null"]
    unlimited = starting.request_body(replace(WANTED, memory="", memory_swap="", pids=0), {})["HostConfig"]
    assert not {"Memory", "MemorySwap", "PidsLimit"} & set(unlimited)


def test_times_are_in_the_units_of_the_engine() -> None:
    health = starting.request_body(WANTED, {})["Healthcheck"]
    assert (health["Timeout"], health["StartPeriod"]) == (10 * 10**9, 3600 * 10**9)


def test_the_engine_asks_seldom_once_the_server_has_answered() -> None:
    """Three events a probe: the engine's record of 256 lasts for hours, and a start of minutes fits into it."""
    health = starting.request_body(WANTED, {})["Healthcheck"]
    an_hour = 3 * 3600 / (health["Interval"] / 10**9)
    assert an_hour * 12 < 256
    assert 3 * 600 / (health["StartInterval"] / 10**9) < 256
