"""The request to an engine; test_on_engine tests that it creates the intended container."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.base.machine_record import Machine
from builder.definitions.container import DEFAULT_SHARE, GIB, GPU_MEMORY, LABEL, GpuMemory, PublishedPort
from builder.engine.containers import Service
from builder.serving import starting
from builder.serving.starting import memory_shortage
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


# Which servers fit into the memory of a Spark; tests/commands/test_run_memory.py tries it with real containers.

TOTAL = 120 * GIB
RESERVE = 8 * GIB


def shortage(
    memory: GpuMemory, available: float, others: tuple[Service, ...] = (), reserve: int = RESERVE
) -> tuple[str, str] | None:
    machine = Machine(memory=TOTAL, available=int(available * GIB))
    return memory_shortage(memory, machine, "this machine", reserve, others)


def server(name: str, memory: str) -> Service:
    labels = {LABEL: name, GPU_MEMORY: memory}
    return Service("id", name, "image:1", "sha256:0", labels, "running", "healthy", "", 0, 0)


@pytest.mark.parametrize("memory", [GpuMemory(0.9), GpuMemory(DEFAULT_SHARE), GpuMemory(0.1), GpuMemory(gibibytes=100)])
def test_what_fits_an_idle_machine(memory: GpuMemory) -> None:
    assert shortage(memory, 116) is None


def test_a_share_that_leaves_the_machine_too_little() -> None:
    told = shortage(GpuMemory(0.95), 116)
    assert told is not None
    assert told[0] == (
        "the server would take 114.0 GiB (0.95 of 120.0 GiB) of the memory of this machine, and leave 6.0 GiB: "
        "less than the reserve of 8.0 GiB"
    )
    assert "`--gpu-mem 0.93` of `builder run` would fit" in told[1]
    assert "`reserve` in builder.yaml" in told[1]
    assert "--force" in told[1]
    assert shortage(GpuMemory(0.95), 116, reserve=6 * GIB) is None
    assert shortage(GpuMemory(0.93), 116) is None


def test_the_share_in_the_hint_fits_beside_the_other_server() -> None:
    told = shortage(GpuMemory(0.95), 20.5, (server("large", "0.8"),))
    assert told is not None
    assert told[1].startswith("`--gpu-mem 0.17` of `builder run` would fit")
    assert shortage(GpuMemory(0.17), 20.5, (server("large", "0.8"),)) is None


def test_an_amount_that_leaves_the_machine_too_little() -> None:
    told = shortage(GpuMemory(gibibytes=130), 116)
    assert told is not None
    assert "would take 130.0 GiB of the memory of this machine, and leave 0.0 GiB" in told[0]
    assert "(up to 112)" in told[1]


def test_a_second_server_beside_one_that_has_taken_most_of_it() -> None:
    told = shortage(GpuMemory(0.5), 20.5, (server("large", "0.8"),))
    assert told is not None
    assert told[0] == (
        "the server needs 60.0 GiB (0.5 of 120.0 GiB), but this machine has only 20.5 GiB of memory available "
        "while large (GPU memory: 0.8) is running"
    )
    assert told[1].startswith("`builder stop large` makes room; `--gpu-mem 0.17` of `builder run` would fit")
    assert shortage(GpuMemory(0.17), 20.5, (server("large", "0.8"),)) is None


def test_vllm_s_own_share_is_called_the_default() -> None:
    told = shortage(GpuMemory(DEFAULT_SHARE), 3)
    assert told is not None
    assert "110.4 GiB (0.92, the default, of 120.0 GiB)" in told[0]


def test_no_memory_at_all() -> None:
    told = shortage(GpuMemory(0.5), 0.3)
    assert told is not None
    assert told[1].startswith("no share of the memory would fit; ")
