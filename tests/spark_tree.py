"""A stand-in for the root folder of a DGX Spark, which no test machine has, and for the programs that describe it.

The texts have the form of files of the kernel, NVIDIA's driver and DGX OS. They contain serial numbers and addresses,
which must not be recorded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests import spark_proc

if TYPE_CHECKING:
    from pathlib import Path

SERIAL = "1983925017234"
MAC = "4c:bb:47:12:34:56"


@dataclass(frozen=True)
class Tree:
    """The values in the tree. An empty value leaves its file out."""

    kernel: str = "6.17.0-1032-nvidia"
    driver: str = "580.173.02"
    bios: str = "5.36_0ACUM018"
    controller: str = "2.4"
    roce: str = "28.45.4028"
    rate: str = "200 Gb/sec (4X HDR)"
    governor: str = "performance"
    parameters: str = ""
    cma: str = "65536 kB"
    cma_free: str = "60000 kB"
    available: float = 114
    ota: str = "7.5.0"
    gpu_firmware: str = "580.173.02"
    fwupd: dict[str, str] = field(default_factory=lambda: {"USB-C controller": "0.1.7"})
    toolkit: str = "1.18.1"
    power: str = ""

    def but(self, **changes: Any) -> Tree:
        return replace(self, **changes)


def write(root: Path, tree: Tree) -> Path:
    """Writes the files of the tree below ``root``, replacing existing files, and returns ``root``."""
    proc = spark_proc.write(root / "proc", available=tree.available)
    cma = f"CmaTotal:       {tree.cma}\nCmaFree:        {tree.cma_free}\n" if tree.cma else ""
    _put(proc / "meminfo", spark_proc.meminfo(tree.available) + cma)
    _put(proc / "sys/kernel/osrelease", tree.kernel)
    _put(proc / "cmdline", f"BOOT_IMAGE=/boot/vmlinuz root=UUID={SERIAL} ro {tree.parameters} quiet")
    version = f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {tree.driver}  Release Build  (a@b)\n"
    _put(proc / "driver/nvidia/version", version if tree.driver else "")
    information = proc / "driver/nvidia/gpus/000f:01:00.0/information"
    _put(
        information,
        "Model: \t\t NVIDIA GB10\nIRQ:   \t\t 137\nGPU UUID: \t GPU-0a1b2c3d-0000-1111-2222-333344445555\n"
        f"Video BIOS: \t ??.??.??.??.??\nGPU Firmware: \t {tree.gpu_firmware}\n",
    )
    _put(proc / "cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd87\n")
    _put(root / "etc/os-release", 'PRETTY_NAME="Ubuntu 24.04.4 LTS"\nID=ubuntu\n')
    _put(
        root / "etc/dgx-release",
        'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"\nDGX_COMMIT_ID="833b4a7"\n'
        f'DGX_SERIAL_NUMBER="{SERIAL}"\n\nDGX_OTA_VERSION="7.3.1"\n\nDGX_OTA_VERSION="{tree.ota}"\n',
    )
    dmi = root / "sys/class/dmi/id"
    _put(dmi / "bios_version", tree.bios)
    _put(dmi / "ec_firmware_release", tree.controller)
    _put(dmi / "product_name", "NVIDIA_DGX_Spark")
    _put(dmi / "product_serial", SERIAL)
    for device in ("rocep1s0f1", "roceP2p1s0f1"):
        own = root / "sys/class/infiniband" / device
        _put(own / "fw_ver", tree.roce)
        _put(own / "node_guid", MAC)
        _put(own / "ports/1/rate", tree.rate if tree.roce else "")
    _put(root / "sys/devices/system/cpu/cpufreq/policy0/scaling_governor", tree.governor)
    _put(root / "sys/class/nvme/nvme0/firmware_rev", "GXA7601Q")
    return root


def programs(folder: Path, tree: Tree) -> Path:
    """Writes the programs of the machine into ``folder``, which belongs into PATH, and returns the folder."""
    devices = [
        {"Name": name, "DeviceId": SERIAL, "Serial": SERIAL, "Guid": [SERIAL], "Version": version}
        for name, version in tree.fwupd.items()
    ]
    nameless = [{"DeviceId": SERIAL, "Version": "1"}, {"Name": "a device without a version", "Serial": SERIAL}]
    answers = {
        "fwupdmgr": json.dumps({"Devices": [*devices, *nameless]}),
        "nvidia-ctk": f"NVIDIA Container Toolkit CLI version {tree.toolkit}\ncommit: {'a' * 40}",
        "nvidia-smi": tree.power or "[N/A]",
    }
    for name, answer in answers.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if text:
        path.write_text(f"{text.rstrip()}\n", encoding="utf-8")
