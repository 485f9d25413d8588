"""The Python that has vLLM: of an image, in a container that sees the GPUs, or of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.definitions.container import COMPILE_CACHES, GPU_ENVIRONMENT, HOME

if TYPE_CHECKING:
    from collections.abc import Sequence


PARTS = Path(__file__).parent / "parts"
RUN = "part_run.py"
MODS = Path(__file__).parents[2] / "mods"
# A container without a network has the loopback alone, where one process talks to itself.
LOOPBACK = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
# Passed on to containers where they are set.
VARIABLES = ("ENGINE_OPTIONS", "GPU_MEMORY_UTILIZATION")


@dataclass(frozen=True)
class InstalledVllm:
    """vLLM of the interpreter ``python``."""

    python: str

    @property
    def name(self) -> str:
        return f"vLLM of {self.python}"

    def command(self, script: str, arguments: Sequence[str], seconds: float) -> list[str]:
        return [self.python, str(PARTS / RUN), f"{seconds:.0f}", str(PARTS / script), *arguments]

    def end(self) -> None:
        """Ends what a part has left: nothing, since its own process ended with it."""

    def clean_up(self) -> None:
        """Leaves the compile caches of the user as they are."""


@dataclass(frozen=True)
class ImageVllm:
    """vLLM of ``image``: each part runs in a container that is gone afterwards. What it compiles is kept for the next
    in volumes, named after this process like the container."""

    image: str

    @property
    def name(self) -> str:
        return self.image

    @property
    def container(self) -> str:
        return f"builder-test-gpu-{os.getpid()}"

    @property
    def volumes(self) -> dict[str, str]:
        """The volumes of the compile caches, and where they are in a container."""
        return {f"{self.container}-{name}": f"{HOME}/{path}" for name, path in COMPILE_CACHES.items()}

    def command(self, script: str, arguments: Sequence[str], seconds: float) -> list[str]:
        volumes = [f"{path}:/{path.name}:ro" for path in (PARTS, MODS)]
        volumes += [f"{volume}:{path}" for volume, path in self.volumes.items()]
        environ = [f"{name}={value}" for name, value in (GPU_ENVIRONMENT | LOOPBACK).items()]
        docker = ["docker", "run", "--rm", "--name", self.container]
        docker += ["--gpus", "all", "--ipc", "host", "--network", "none"]
        docker += [word for volume in volumes for word in ("--volume", volume)]
        docker += [word for variable in (*environ, *VARIABLES) for word in ("--env", variable)]
        docker += ["--entrypoint", "python3", self.image]
        return [*docker, f"/parts/{RUN}", f"{seconds:.0f}", f"/parts/{script}", *arguments]

    def end(self) -> None:
        """Ends the container of a part, which goes on when the client that started it is killed."""
        _quietly("docker", "rm", "--force", self.container)

    def clean_up(self) -> None:
        """Removes the compile caches: a later run is to tell what a cold start takes."""
        self.end()
        _quietly("docker", "volume", "rm", "--force", *self.volumes)


def _quietly(*command: str) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=60)


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


def why_no_image(image: str) -> str:
    """Why ``image`` cannot be run, or nothing."""
    try:
        done = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "docker is not installed"
    except subprocess.TimeoutExpired:
        return "docker does not answer"
    return "" if done.returncode == 0 else done.stderr.strip() or f"docker ended with {done.returncode}"
