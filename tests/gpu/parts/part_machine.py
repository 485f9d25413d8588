"""The GPU, and the versions of what the mods build on."""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import platform
import re
import subprocess
from pathlib import Path

import torch
from part_results import Results

# What the parts take at most, and some room for the rest of the machine where the memory is its, too.
NEEDED = 12 << 30
PACKAGES = ("vllm", "torch", "triton", "transformers", "flash-qla", "tilelang", "apache-tvm-ffi", "flashinfer-python")
# What each mod that changes vLLM puts into it.
MODS = {
    "flashqla": "mamba/gdn_flashqla",
    "int8-lm-head": "int8_lm_head",
    "enable-hybrid-int4fp8": "quantization/inc_hybrid.py",
}


def mods() -> list[str]:
    """Those of MODS that are in this vLLM, which is not imported."""
    spec = importlib.util.find_spec("vllm")
    layers = [Path(folder, "model_executor/layers") for folder in (spec and spec.submodule_search_locations) or ()]
    return [mod for mod, path in MODS.items() if any((folder / path).exists() for folder in layers)]


def told_by(*command: str) -> str:
    """The last line that the command prints; `none` where it cannot be run."""
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return lines[-1].strip() if lines else "none"


def free_memory() -> tuple[int, int]:
    """What is free, and all of it, in bytes. Where the GPU has no memory of its own, as in a DGX Spark, CUDA's figure
    leaves out what the kernel would give back, so that after a build hardly anything seems to be free."""
    free, total = torch.cuda.mem_get_info()
    if getattr(torch.cuda.get_device_properties(0), "is_integrated", False):
        sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
        free = max(free, int(sizes["MemAvailable"]) << 10)
    return free, total


def main() -> int:
    results = Results()
    major, minor = torch.cuda.get_device_capability()
    known = {
        "gpu": torch.cuda.get_device_name(),
        "gpus": str(torch.cuda.device_count()),
        "driver": told_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "capability": f"{major}.{minor}",
        "nvcc": told_by("nvcc", "--version"),
        "architecture": platform.machine(),
    }
    for package in PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            known[package] = "none"
    for each, version in known.items():
        results.version(each, version)
    results.version("mods", " ".join(mods()))
    free, total = free_memory()
    results.figure("gpu_memory", {"of": "free"}, "bytes", "", float(free))
    results.figure("gpu_memory", {"of": "all"}, "bytes", "", float(total))
    results.check(
        "machine",
        "memory",
        free >= NEEDED,
        f"{free >> 30} GiB of {total >> 30} are free, and the parts take {NEEDED >> 30}: end what else is on this GPU",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
