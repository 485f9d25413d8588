from __future__ import annotations

import pytest

from builder.definitions import container
from builder.definitions.container import GIB, GpuMemory

SERVE = ("vllm", "serve", "x")


@pytest.mark.parametrize(
    ("words", "memory"),
    [
        (("--gpu-memory-utilization", "0.7"), GpuMemory(0.7)),
        (("--gpu_memory_utilization=0.7",), GpuMemory(0.7)),
        (("--gpu-memory-utilization", "0.7", "--gpu-memory-utilization", "0.5"), GpuMemory(0.5)),
        (("--gpu-memory-utilization-gb", "96"), GpuMemory(gibibytes=96)),
        (("--gpu-memory-utilization", "0.7", "--gpu-memory-utilization-gb", "96"), GpuMemory(gibibytes=96)),
        (("--gpu-memory-utilization", "0.7", "--kv-cache-memory-bytes", "4G"), GpuMemory(0.7, is_minimum=True)),
        ((), GpuMemory(0.92, is_default=True)),
        (("--gpu-memory-utilization", "$SHARE"), None),
        (("--gpu-memory-utilization", "nan"), None),
        (("--gpu-memory-utilization-gb", "-1"), None),
    ],
)
def test_the_memory_that_a_command_asks_for(words: tuple[str, ...], memory: GpuMemory | None) -> None:
    assert container.read_gpu_memory((*SERVE, *words)) == memory


def test_what_serves_no_model_asks_for_nothing() -> None:
    assert container.read_gpu_memory(("sleep", "1")) is None


@pytest.mark.parametrize("memory", [GpuMemory(0.7), GpuMemory(0.92), GpuMemory(gibibytes=96), GpuMemory(gibibytes=0.5)])
def test_a_label_tells_the_same(memory: GpuMemory) -> None:
    assert container.of_label(str(memory)) == memory


def test_a_server_without_the_label_has_the_default() -> None:
    assert container.of_label("") == GpuMemory(0.92, is_default=True)


def test_bytes() -> None:
    assert GpuMemory(0.5).of(120 * GIB) == 60 * GIB
    assert GpuMemory(gibibytes=96).of(120 * GIB) == 96 * GIB
