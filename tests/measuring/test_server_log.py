"""Figures from a server's log, its memory and its machine."""

from __future__ import annotations

import pytest

from builder.engine.containers import LogLine
from builder.lab.measure import bench, served_model

STARTED = "2026-11-22T10:00:00.000000000Z"
LOG = """\
2026-11-22T09:00:00.000000000Z INFO Model loading took 1.0000 GiB memory and 9.000000 seconds
2026-11-22T10:00:20.000000000Z INFO [gpu_model_runner.py:4] Model loading took 14.5000 GiB memory and 31.25 seconds
2026-11-22T10:00:30.000000000Z INFO 11-22 [gpu_worker.py:4] Available KV cache memory: 61.25 GiB
2026-11-22T10:00:31.000000000Z INFO 11-22 [kv_cache_utils.py:1] GPU KV cache size: 1,234,560 tokens
2026-11-22T10:00:40.000000000Z INFO 11-22 [gpu_model_runner.py:5] Graph capturing finished in 17 secs, took 0.60 GiB
2026-11-22T10:01:02.500000000Z INFO:     Application startup complete.
"""
MIB = 1 << 20
# As arch/arm64/kernel/cpuinfo.c writes it of four cores: Cortex-A725 and Cortex-X925, without a name.
CORES = "".join(
    f"processor\t: {number}\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"
    f"CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\nCPU revision\t: 1\n\n"
    for number, part in enumerate(("0xd87", "0xd87", "0xd85", "0xd85"))
)


def lines(text: str) -> list[LogLine]:
    return [LogLine(*line.split(" ", 1)) for line in text.splitlines()]


def test_the_figures_of_this_start() -> None:
    figures = {figure.name: figure.values[0] for figure in bench.log_figures(lines(LOG), STARTED)}
    assert figures == {
        "kv_tokens": 1_234_560,
        "model_memory": 14.5 * (1 << 30),
        "model_loading": 31.25,
        "kv_memory": 61.25 * (1 << 30),
        "graph_capture": 17,
        "startup": 62.5,
    }


@pytest.mark.parametrize("written", ["2026-11-22T09:59:00Z", "2026-11-29T10:00:00Z", "soon"])
def test_a_clock_that_jumped_gives_no_time_of_the_start(written: str) -> None:
    log = [LogLine(written, "Application startup complete.")]
    assert bench.log_figures(log, STARTED) == ()


def test_the_cpu_build_tells_its_cache_as_well() -> None:
    log = lines("2026-11-22T10:00:31.0Z INFO [kv_cache_utils.py:1] CPU KV cache size: 65,536 tokens")
    assert bench.log_figures(log, STARTED)[0].values == (65_536,)


@pytest.mark.parametrize(
    ("taken", "grows"),
    [
        ([1000, 1500, 2000, 2100, 2100, 2101, 2100, 2100, 2101], False),  # caches fill, and then no more
        ([1000, 1400, 1800, 2200, 2600, 3000, 3400, 3800, 4200], True),
        ([1000, 1400, 1800], False),  # too few to tell
        ([4000, 4000, 4000, 4000, 4001, 4002, 4003, 4004, 4005], False),
        ([1000, 1400, 1800, 2200, 2600, 3000, 3400, 2000, 1800], False),  # freed again
    ],
)
def test_memory_that_grows_to_the_end_is_a_leak(taken: list[int], grows: bool) -> None:
    assert bool(bench.leak([size * MIB for size in taken])) is grows


def test_a_machine_by_its_files() -> None:
    files = "MemTotal:       125000000 kB\nMemAvailable:   100 kB\nModel: \t\t NVIDIA GB10\nIRQ: 3\n"
    driver = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\n"
    parsed = served_model.parse_machine(files, driver, CORES, "linux/arm64")
    assert (parsed.gpu, parsed.gpus, parsed.driver) == ("NVIDIA GB10", 1, "580.95.05")
    assert (parsed.cpu, parsed.platform) == ("arm64 0x41/0xd87 0x41/0xd85", "linux/arm64")
    assert parsed.memory == 125_000_000 * 1024
    assert served_model.parse_machine("", cpu="processor\t: 0\nmodel name\t: AMD EPYC 9554\n").cpu == "AMD EPYC 9554"
    assert served_model.parse_machine("").gpus == 0
