"""The memory of a machine whose GPU has none of its own, and whether a server fits into it.

The GPU of a DGX Spark (GB10) allocates the machine's memory, and the driver reports no memory of its own: `nvidia-smi`
says "Not Supported" (https://docs.nvidia.com/dgx/dgx-spark/known-issues.html). So what counts is the kernel's
MemAvailable. Such a GPU is recognized by its model in /proc/driver/nvidia/gpus/*/information. A container that asks for
no GPU has both files of the machine, too.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from builder.base import machine_record, processes
from builder.base.errors import BuilderError, ConflictError
from builder.base.events import Message
from builder.definitions.container import GIB, GPU_MEMORY, LABEL, of_label
from builder.engine import containers, machine

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from builder.base.events import Report
    from builder.base.machine_record import Machine
    from builder.definitions.container import GpuMemory
    from builder.engine.client import Endpoint
    from builder.engine.containers import Service
    from builder.serving.preparation import PlannedContainer, PreparedServer


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
    ``image``; None if its GPU has memory of its own, or the memory is unknown."""
    if machine.is_here(endpoint.host):
        return shared_memory(machine_record.parse_machine(machine_record.read_files({"proc": proc}, _PLACES), {}))
    with suppress(BuilderError):
        return shared_memory(machine_record.parse_machine(machine.read_in_container(endpoint, image), {}))
    return None


def shared_memory(record: Machine) -> MachineMemory | None:
    """The memory of a machine with this record; None unless its GPU shares it."""
    if not _UNIFIED.search(record.gpu) or not (record.memory and record.available):
        return None
    return MachineMemory(record.memory, record.available)


# The free memory, before a server starts: a Spark that runs out of memory ends no process, it freezes.

_FORCE = "to start it anyway: `--force`"


def require_room(prepared: PreparedServer, leaving: Collection[Service], report: Report, proc: Path = PROC) -> None:
    """Raises ConflictError if the server does not fit into the memory of its machines; with `force` reports it. The
    memory of the containers ``leaving`` counts as free. A server without a GPU is not checked."""
    shortages = [
        shortage
        for planned in prepared.containers
        if planned.settings.gpus and (shortage := _shortage(planned, prepared.reserve, leaving, proc))
    ]
    reasons = list(dict.fromkeys(reason for reason, _ in shortages))
    if prepared.force:
        for reason in reasons:
            report(Message(f"{reason}; started anyway"))
    elif reasons:
        raise ConflictError("\n".join([f"{reasons[0]}: nothing was started", *reasons[1:]]), hint=shortages[0][1])


def _shortage(
    planned: PlannedContainer, reserve: int, leaving: Collection[Service], proc: Path
) -> tuple[str, str] | None:
    label = planned.settings.labels.get(GPU_MEMORY)
    memory = shared_with_gpu(planned.engine.endpoint, planned.settings.image, proc) if label else None
    if label is None or memory is None:
        return None
    up = [service for service in containers.labelled(planned.engine.endpoint, LABEL) if service.is_up]
    ids = {service.id for service in leaving}
    ending = [of_label(service.labels.get(GPU_MEMORY, "")) for service in up if service.id in ids]
    available = min(memory.total, memory.available + sum(taken.of(memory.total) for taken in ending))
    where = f"node {planned.engine.node}" if planned.engine.node else "this machine"
    others = [service for service in up if service.id not in ids]
    return memory_shortage(of_label(label), MachineMemory(memory.total, available), where, reserve, others)


def memory_shortage(
    wanted: GpuMemory, memory: MachineMemory, where: str, reserve: int, others: Sequence[Service] = ()
) -> tuple[str, str] | None:
    """The reason why ``wanted`` does not fit into the ``memory`` of a machine on which ``others`` serve, and a remedy;
    None if it fits and leaves the ``reserve`` (in bytes). vLLM itself ends if less than its share is available."""
    total = memory.total
    needed = wanted.of(total)
    share = f"{needed / GIB:.1f} GiB"
    if not wanted.gibibytes:
        share += f" ({wanted}{', the default,' if wanted.is_default else ''} of {_gib(total)})"
    if not wanted.is_minimum and total - needed < reserve:
        left = f"leave {_gib(max(0, total - needed))}: less than the reserve of {_gib(reserve)}"
        return (
            f"the server would take {share} of the memory of {where}, and {left}",
            f"{_less(wanted, total, total - reserve)}; `reserve` in builder.yaml sets what is left; {_FORCE}",
        )
    if needed > memory.available:
        names = [(service.labels[LABEL], service.labels.get(GPU_MEMORY)) for service in others]
        servers = " and ".join(name + (f" (which was given {given})" if given else "") for name, given in names)
        stops = "".join(f"`builder stop {service.labels[LABEL]}` makes room; " for service in others[:1])
        beside = f" beside {servers}" if servers else ""
        return (
            f"the server needs {share}, and {where} has {_gib(memory.available)} of memory available{beside}",
            f"{stops}{_less(wanted, total, memory.available)}; {_FORCE}",
        )
    return None


def _less(wanted: GpuMemory, total: int, fitting: int) -> str:
    """Advice to take no more than ``fitting`` bytes."""
    if wanted.gibibytes:
        return f"a smaller --gpu-memory-utilization-gb fits (up to {max(0, fitting) // GIB})"
    share = math.floor(fitting / total * 100) / 100
    return f"`--gpu-mem {share:.2f}` would fit, if the model does" if share > 0 else "no share of it would fit"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def fits_beside(prepared: PreparedServer) -> bool:
    """True if a server may run beside what is being served. Unknown memory (of a node, or of a GPU with its own) does
    not count as enough."""
    for planned in prepared.containers:
        settings = planned.settings
        is_unknown = settings.gpus and shared_with_gpu(planned.engine.endpoint, settings.image) is None
        if planned.engine.node or is_unknown:
            return False
    try:
        require_room(prepared, (), lambda _: None)
    except ConflictError:
        return False
    return True
