"""A folder like the /proc of a DGX Spark, which no test machine is: its memory, and its GPU as the driver names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# 119.7 GiB, in kB.
TOTAL = 125513216


def meminfo(available: float) -> str:
    """The file's text with so many GiB available."""
    free = int(available * (1 << 20))
    return f"MemTotal:       {TOTAL} kB\nMemFree:         1048576 kB\nMemAvailable:   {free} kB\nBuffers:  1 kB\n"


def write(folder: Path, available: float, model: str = "NVIDIA GB10") -> Path:
    """Writes the files below ``folder``, and returns it."""
    gpu = folder / "driver/nvidia/gpus/000f:01:00.0"
    gpu.mkdir(parents=True, exist_ok=True)
    text = f"Model: \t\t {model}\nIRQ:   \t\t 137\nGPU UUID: \t GPU-0\nBus Type: \t PCIe\n"
    (gpu / "information").write_text(text, encoding="utf-8")
    (folder / "meminfo").write_text(meminfo(available), encoding="utf-8")
    return folder
