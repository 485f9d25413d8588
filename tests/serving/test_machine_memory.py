"""The memory of a machine, read from files as the kernel and NVIDIA's driver write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.base.machine_record import Machine
from builder.engine.client import Endpoint
from builder.serving.starting import shared_with_gpu
from tests import spark_proc

if TYPE_CHECKING:
    from pathlib import Path


HERE = Endpoint("unix:///run/none.sock", (), "test")


def read(root: Path) -> Machine | None:
    return shared_with_gpu(HERE, {"BUILDER_ROOT": str(root)}, "none:1")


def test_a_spark_tells_what_is_available(tmp_path: Path) -> None:
    spark_proc.write(tmp_path / "proc", available=20)
    memory = read(tmp_path)
    assert memory is not None
    assert (memory.memory, memory.available) == (spark_proc.TOTAL << 10, 20 << 30)


def test_a_gpu_with_memory_of_its_own_is_left_alone(tmp_path: Path) -> None:
    spark_proc.write(tmp_path / "proc", available=20, model="NVIDIA RTX PRO 6000 Blackwell")
    assert read(tmp_path) is None


def test_a_machine_without_nvidia_s_driver_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(spark_proc.meminfo(20), encoding="utf-8")
    assert read(tmp_path) is None
    assert read(tmp_path / "missing") is None


def test_a_spark_whose_free_memory_is_unknown(tmp_path: Path) -> None:
    proc = spark_proc.write(tmp_path / "proc", available=20)
    (proc / "meminfo").write_text("MemTotal:       9 kB\n", encoding="utf-8")
    assert read(tmp_path) is None
