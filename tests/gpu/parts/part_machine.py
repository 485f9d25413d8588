"""The GPU, and the versions of what the mods build on."""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import subprocess
from pathlib import Path

import torch
from part_results import Results

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


def main() -> int:
    results = Results()
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    name, driver = (part.strip() for part in lines[0].split(","))
    major, minor = torch.cuda.get_device_capability()
    capability = f"{major}.{minor}"
    known = {"gpu": name, "gpus": str(len(lines)), "driver": driver, "capability": capability}
    for package in PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            known[package] = "none"
    for each, version in known.items():
        results.version(each, version)
    results.version("mods", " ".join(mods()))
    free, total = torch.cuda.mem_get_info()
    results.figure("gpu_memory", {"of": "free"}, "bytes", "", float(free))
    results.figure("gpu_memory", {"of": "all"}, "bytes", "", float(total))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
