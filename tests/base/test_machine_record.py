"""The record of a machine is read from made-up files and programs; it holds nothing that names the machine."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from builder.base import machine_record, records
from builder.base.machine_record import Machine
from builder.engine import machine
from builder.engine.client import Endpoint
from tests import spark_tree
from tests.spark_tree import Tree

HERE = Endpoint("unix:///nowhere/docker.sock", (), "test")


def read(folder: Path, tree: Tree, seconds: float = 120.0) -> Machine:
    """The record of a made-up machine; its programs have the time that a busy test machine takes."""
    root, bin_folder = spark_tree.write(folder / "root", tree), spark_tree.programs(folder / "bin", tree)
    environ = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "BUILDER_ROOT": str(root)}
    return machine.read_machine(HERE, environ, seconds=seconds)


def test_a_spark(tmp_path: Path) -> None:
    found = read(tmp_path, Tree(parameters="kho=off iommu.passthrough=1 pci=pcie_bus_perf", power="140.00"))
    assert (found.gpu, found.gpus, found.driver) == ("NVIDIA GB10", 1, "580.173.02")
    assert (found.kernel, found.parameters) == ("6.17.0-1032-nvidia", "iommu.passthrough=1 kho=off pci=pcie_bus_perf")
    assert (found.distribution, found.product) == ("Ubuntu 24.04.4 LTS, DGX OS 7.5.0", "NVIDIA_DGX_Spark")
    assert found.firmware == {
        "BIOS": "5.36_0ACUM018",
        "GPU Firmware": "580.173.02",
        "NVMe nvme0": "GXA7601Q",
        "RoCE roceP2p1s0f1": "28.45.4028",
        "RoCE rocep1s0f1": "28.45.4028",
        "embedded controller": "2.4",
        "fwupd USB-C controller": "0.1.7",
    }
    assert found.links == {"roceP2p1s0f1": "200 Gb/sec (4X HDR)", "rocep1s0f1": "200 Gb/sec (4X HDR)"}
    assert (found.toolkit, found.power, found.governor) == ("1.18.1", "140.00", "performance")
    assert (found.cma, found.cma_free) == (65536 << 10, 60000 << 10)
    assert (found.cpu, found.available >> 30) == ("arm64 0x41/0xd87", 114)


def test_nothing_names_the_machine(tmp_path: Path) -> None:
    kept = json.dumps(records.plain(read(tmp_path, Tree())))
    for name in (spark_tree.SERIAL, spark_tree.MAC, "0a1b2c3d", os.uname().nodename.ljust(5, "!"), str(tmp_path)):
        assert name not in kept


def test_a_record_comes_back_from_json(tmp_path: Path) -> None:
    found = read(tmp_path, Tree(cma="0 kB"))
    assert records.record(Machine, json.loads(json.dumps(records.plain(found)))) == found
    assert found.cma == 0


@pytest.mark.parametrize("planted", ["$(reboot)", "\x1b[31mred", "a\x00b", "<b>", "`id`", "x" * 5000])
def test_a_value_that_is_no_version_is_cut_or_left_out(tmp_path: Path, planted: str) -> None:
    found = read(tmp_path, Tree(bios=planted, kernel=planted, roce=planted))
    assert found.kernel in {"", "x" * 200}
    assert found.firmware.get("BIOS", "") in {"", "x" * 200}


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    found = machine.read_machine(HERE, {"PATH": str(tmp_path), "BUILDER_ROOT": str(tmp_path)})
    assert found == Machine(platform=found.platform)


def test_programs_that_hang_or_fail_are_not_waited_for(tmp_path: Path) -> None:
    root, folder = spark_tree.write(tmp_path / "root", Tree()), spark_tree.programs(tmp_path / "bin", Tree())
    (folder / "fwupdmgr").write_text("#!/bin/sh\nexec sleep 600\n")
    (folder / "nvidia-ctk").write_text("#!/bin/sh\necho 9.9.9\nexit 1\n")
    began = time.monotonic()
    found = machine.read_machine(HERE, {"PATH": f"{folder}:{os.environ['PATH']}", "BUILDER_ROOT": str(root)})
    assert time.monotonic() - began < 300
    assert found.toolkit == ""
    assert found.kernel == "6.17.0-1032-nvidia"


def changes(tmp_path: Path, **values: object) -> list[str]:
    before, after = read(tmp_path, Tree()), read(tmp_path, Tree().but(**values))
    return [str(change) for change in machine_record.machine_changes(before, after)]


def test_the_differences_between_two_records(tmp_path: Path) -> None:
    assert changes(tmp_path) == []
    assert changes(tmp_path, kernel="7.0.0-1019-nvidia", cma="0 kB") == [
        "kernel: 6.17.0-1032-nvidia → 7.0.0-1019-nvidia",
        "memory for devices (CmaTotal): 65536 kB → 0 kB",
    ]
    assert changes(tmp_path, bios="5.36_0ACUM027") == ["firmware of BIOS: 5.36_0ACUM018 → 5.36_0ACUM027"]
    assert changes(tmp_path, rate="100 Gb/sec (2X HDR)")[0] == (
        "rate of the link of roceP2p1s0f1: 200 Gb/sec (4X HDR) → 100 Gb/sec (2X HDR)"
    )
    assert changes(tmp_path, parameters="kho=off") == ["kernel parameters: none → kho=off"]
    assert changes(tmp_path, available=60) == ["free memory: 122 GB → 64.4 GB"]
    assert changes(tmp_path, available=113) == []


def test_what_one_side_does_not_know_is_no_difference(tmp_path: Path) -> None:
    assert changes(tmp_path, bios="", driver="", toolkit="", cma="", roce="", fwupd={}) == []
