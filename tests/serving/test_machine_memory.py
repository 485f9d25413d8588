"""The memory of a machine, read from files as the kernel and NVIDIA's driver write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.machine_record import Machine
from builder.engine.client import Endpoint
from builder.serving.starting import shared_with_gpu, shares_memory
from tests import spark_proc

if TYPE_CHECKING:
    from pathlib import Path


HERE = Endpoint("unix:///run/none.sock", (), "test")


def test_a_spark_tells_what_is_available(tmp_path: Path) -> None:
    proc = spark_proc.write(tmp_path, available=20)
    memory = shared_with_gpu(HERE, "none:1", proc)
    assert memory is not None
    assert (memory.memory, memory.available) == (spark_proc.TOTAL << 10, 20 << 30)


def test_a_gpu_with_memory_of_its_own_is_left_alone(tmp_path: Path) -> None:
    proc = spark_proc.write(tmp_path, available=20, model="NVIDIA RTX PRO 6000 Blackwell")
    assert shared_with_gpu(HERE, "none:1", proc) is None


def test_a_machine_without_nvidia_s_driver_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(spark_proc.meminfo(20), encoding="utf-8")
    assert shared_with_gpu(HERE, "none:1", tmp_path) is None
    assert shared_with_gpu(HERE, "none:1", tmp_path / "missing") is None


@pytest.mark.parametrize("record", [Machine(), Machine(memory=9, available=3), Machine(gpu="NVIDIA GB10", memory=9)])
def test_a_record_that_tells_too_little(record: Machine) -> None:
    assert not shares_memory(record)
