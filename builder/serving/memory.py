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

from builder.base import machine_record, processes
from builder.base.errors import BuilderError
from builder.engine import machine

if TYPE_CHECKING:
    from builder.base.machine_record import Machine
    from builder.engine.client import Endpoint


PROC = Path("/proc")
# GB10 of the DGX Spark and its kin; the GPUs of Jetson boards share their memory in the same way.
_UNIFIED = re.compile(r"\b(GB10|Thor|Orin)\b")
_PLACES = (f"proc/{processes.MEMORY}", f"proc/{processes.GPUS}")


class MachineMemory(NamedTuple):
    """The memory of a machine in bytes: all of it, and what the kernel can still give out."""

    total: int
    available: int


def shared_with_gpu(endpoint: Endpoint, image: str, proc: Path = PROC) -> MachineMemory | None:
    """The memory of the engine's machine, read in ``proc`` or, on another machine, by a short-lived container of
    ``image``; None where its GPU has memory of its own, or nothing can be learned."""
    try:
        here = machine.is_here(endpoint.host)
        files = (
            machine_record.read_files({"proc": proc}, _PLACES) if here else machine.read_in_container(endpoint, image)
        )
    except BuilderError:
        return None
    return shared_memory(machine_record.parse_machine(files, {}))


def shared_memory(record: Machine) -> MachineMemory | None:
    """The memory of a machine with this record; None unless its GPU shares it."""
    if not _UNIFIED.search(record.gpu) or not (record.memory and record.available):
        return None
    return MachineMemory(record.memory, record.available)
