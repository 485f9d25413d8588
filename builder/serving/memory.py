"""The memory of the machine that an engine runs on, where its GPU has none of its own.

The GPU of a DGX Spark (GB10) allocates the machine's memory, and the driver reports no memory of its own: `nvidia-smi`
says "Not Supported" (https://docs.nvidia.com/dgx/dgx-spark/known-issues.html). So what counts is the kernel's
MemAvailable. The driver does tell the GPU's model, in /proc/driver/nvidia/gpus/*/information, and that is how such a
GPU is recognized. Both files are the machine's own inside a container, too, as long as that asks for no GPU.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from builder.base import processes
from builder.base.errors import BuilderError
from builder.engine import containers

if TYPE_CHECKING:
    from builder.engine.client import Endpoint


PROC = Path("/proc")
# GB10 of the DGX Spark and its kin; the GPUs of Jetson boards share their memory in the same way.
_UNIFIED = re.compile(r"^Model:.*\b(GB10|Thor|Orin)\b", re.MULTILINE)
_READING = f"cat {PROC}/{processes.MEMORY} {PROC}/{processes.GPUS} 2>/dev/null"
_READING_SECONDS = 60.0


class MachineMemory(NamedTuple):
    """The memory of a machine in bytes: all of it, and what the kernel can still give out."""

    total: int
    available: int


def shared_with_gpu(endpoint: Endpoint, image: str, proc: Path = PROC) -> MachineMemory | None:
    """The memory of the engine's machine, read in ``proc`` or, on another machine, by a short-lived container of
    ``image``; None where its GPU has memory of its own, or nothing can be learned."""
    if endpoint.host.startswith("unix://"):
        files = (proc / processes.MEMORY, *sorted(proc.glob(processes.GPUS)))
        return parse_memory("".join(map(processes.text, files)))
    try:
        return parse_memory(read_in_container(endpoint, image))
    except BuilderError:
        return None


def read_in_container(endpoint: Endpoint, image: str) -> str:
    """The text of the files of an engine's machine, as far as they are there, read in a container of ``image``."""
    with containers.running(endpoint, image, labels={"builder.serve.check": "memory"}) as container:
        return container.run(["sh", "-c", _READING], timeout=_READING_SECONDS).output


def parse_memory(text: str) -> MachineMemory | None:
    """The memory that the text of these files tells; None unless one of the GPUs shares it."""
    sizes = processes.sizes(text)
    if not _UNIFIED.search(text) or not {"MemTotal", "MemAvailable"} <= sizes.keys():
        return None
    return MachineMemory(sizes["MemTotal"], sizes["MemAvailable"])
