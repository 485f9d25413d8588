"""The Python that has vLLM: of an image, in a container that sees the GPUs, or of this machine."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS = Path(__file__).parent / "parts"
MODS = Path(__file__).parents[2] / "mods"
# Passed on to containers where they are set.
VARIABLES = ("ENGINE_OPTIONS", "GPU_MEMORY_UTILIZATION")


@dataclass(frozen=True)
class InstalledVllm:
    """vLLM of the interpreter ``python``."""

    python: str

    @property
    def name(self) -> str:
        return f"vLLM of {self.python}"

    def command(self, script: str, arguments: Sequence[str]) -> list[str]:
        return [self.python, str(PARTS / script), *arguments]


@dataclass(frozen=True)
class ImageVllm:
    """vLLM of ``image``: each part runs in a container that is gone afterwards."""

    image: str

    @property
    def name(self) -> str:
        return self.image

    def command(self, script: str, arguments: Sequence[str]) -> list[str]:
        mounts = [word for path in (PARTS, MODS) for word in ("--volume", f"{path}:/{path.name}:ro")]
        docker = ["docker", "run", "--rm", "--gpus", "all", "--ipc", "host", "--network", "none", *mounts]
        docker += [word for name in VARIABLES for word in ("--env", name)]
        return [*docker, "--entrypoint", "python3", self.image, f"/parts/{script}", *arguments]


def why_no_gpu() -> str:
    """Why there is no NVIDIA GPU to test on, or nothing."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "nvidia-smi is not installed"
    except subprocess.TimeoutExpired:
        return "nvidia-smi does not answer"
    if done.returncode or "GPU 0" not in done.stdout:
        return (done.stdout + done.stderr).strip() or f"nvidia-smi ended with {done.returncode}"
    return ""


def why_no_vllm(python: str) -> str:
    """Why ``python`` cannot be asked, or nothing."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        done = subprocess.run([python, "-c", look], capture_output=True, text=True, timeout=60)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else f"{python} has no vLLM"
