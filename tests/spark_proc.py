"""A stand-in for /proc of a DGX Spark, which no test machine has: its memory, and its GPU as the driver names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# 119.7 GiB, in kB.
TOTAL = 125513216


def meminfo(available: float) -> str:
    """The text of the file with ``available`` GiB."""
    free = int(available * (1 << 20))
    return f"MemTotal:       {TOTAL} kB\nMemFree:         1048576 kB\nMemAvailable:   {free} kB\nBuffers:  1 kB\n"


def write_whole(
    folder: Path,
    *,
    driver: str = "580.95.05",
    kernel: str = "6.17.0-1032-nvidia",
    swap: tuple[int, int] = (16, 16),
    earlyoom: bool = True,
) -> Path:
    """Also writes the other facts that a check of the machine reads: the driver's version, the kernel's release, the
    swap in GiB (total and free), and the processes."""
    write(folder, available=110)
    (folder / "sys/kernel").mkdir(parents=True, exist_ok=True)
    (folder / "sys/kernel/osrelease").write_text(f"{kernel}\n", encoding="utf-8")
    version = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {driver}  Release Build  (a@b)\nGCC version:\n"
    )
    (folder / "driver/nvidia/version").write_text(version, encoding="utf-8")
    total, free = (size << 20 for size in swap)
    with (folder / "meminfo").open("a", encoding="utf-8") as file:
        file.write(f"SwapTotal:      {total} kB\nSwapFree:       {free} kB\n")
    for number, name in enumerate(["systemd", "bash", *(["earlyoom"] if earlyoom else [])], 1):
        (folder / str(number)).mkdir(exist_ok=True)
        (folder / str(number) / "comm").write_text(f"{name}\n", encoding="utf-8")
    return folder


def nvidia_smi(folder: Path, output: str = "12.1", code: int = 0) -> Path:
    """Puts a stand-in for `nvidia-smi` into ``folder``, and returns the folder."""
    folder.mkdir(exist_ok=True)
    stream = " >&2" if code else ""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{output}'{stream}\nexit {code}\n", encoding="utf-8")
    (folder / "nvidia-smi").chmod(0o755)
    return folder


def write(folder: Path, available: float, model: str = "NVIDIA GB10") -> Path:
    """Writes the files below ``folder``, and returns the folder."""
    gpu = folder / "driver/nvidia/gpus/000f:01:00.0"
    gpu.mkdir(parents=True, exist_ok=True)
    text = f"Model: \t\t {model}\nIRQ:   \t\t 137\nGPU UUID: \t GPU-0\nBus Type: \t PCIe\n"
    (gpu / "information").write_text(text, encoding="utf-8")
    (folder / "meminfo").write_text(meminfo(available), encoding="utf-8")
    return folder
