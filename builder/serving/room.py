"""Room for a server in the memory of its machine, looked at before it starts: a Spark that runs out of memory ends
nothing, it freezes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes import gpu_memory
from builder.definitions.recipes.container import GPU_MEMORY, LABEL
from builder.engine import services
from builder.errors import ConflictError
from builder.events import Message
from builder.serving import machine_memory

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from builder.definitions.recipes.gpu_memory import GpuMemory
    from builder.engine.services import Service
    from builder.events import Report
    from builder.serving.machine_memory import MachineMemory, MemoryRule
    from builder.serving.preparation import PlannedContainer, PreparedServer

_FORCE = "`--force` starts it all the same"


@dataclass(frozen=True)
class Shortage:
    """A reason why a server does not fit, and what would help."""

    reason: str
    remedy: str


def require(
    prepared: PreparedServer, leaving: Collection[Service], report: Report, proc: Path = machine_memory.PROC
) -> None:
    """Raises ConflictError where the server does not fit into the memory of its machines, or reports it if the request
    insists. The memory of the containers ``leaving`` counts as free. Looks at nothing where no GPU is used."""
    shortages = [
        shortage
        for planned in prepared.containers
        if planned.settings.gpus and (shortage := _shortage(planned, prepared.memory, leaving, proc))
    ]
    if not shortages:
        return
    reasons = list(dict.fromkeys(shortage.reason for shortage in shortages))
    if prepared.memory.insist:
        for reason in reasons:
            report(Message(f"{reason}; started all the same"))
        return
    raise ConflictError("\n".join([f"{reasons[0]}: nothing was started", *reasons[1:]]), hint=shortages[0].remedy)


def _shortage(planned: PlannedContainer, rule: MemoryRule, leaving: Collection[Service], proc: Path) -> Shortage | None:
    label = planned.settings.labels.get(GPU_MEMORY)
    if label is None:
        return None
    memory = machine_memory.shared_with_gpu(planned.engine.endpoint, planned.settings.image, proc)
    if memory is None:
        return None
    here = services.labelled(planned.engine.endpoint, LABEL)
    ids = {service.id for service in leaving}
    freed = sum(_taken(service, memory.total) for service in here if service.id in ids)
    others = [service for service in here if service.is_up and service.id not in ids]
    available = min(memory.total, memory.available + freed)
    where = f"node {planned.engine.node}" if planned.engine.node else "this machine"
    return shortage(gpu_memory.of_label(label), MachineMemoryNow(memory, available, where), rule, others)


def _taken(service: Service, total: int) -> int:
    return gpu_memory.of_label(service.labels.get(GPU_MEMORY, "")).of(total) if service.is_up else 0


@dataclass(frozen=True)
class MachineMemoryNow:
    """The memory of a machine, of which ``available`` bytes can be had when the server starts; ``name`` is for
    messages."""

    memory: MachineMemory
    available: int
    name: str


def shortage(
    wanted: GpuMemory, machine: MachineMemoryNow, rule: MemoryRule, others: Sequence[Service] = ()
) -> Shortage | None:
    """The reason why ``wanted`` does not fit into a machine on which ``others`` serve, or None.

    vLLM itself ends where less than its share is available when it starts; what it leaves over is the machine's.
    """
    total = machine.memory.total
    needed = wanted.of(total)
    share = f"{needed / gpu_memory.GIB:.1f} GiB"
    if not wanted.gibibytes:
        share += f" ({wanted}{', the default,' if wanted.is_default else ''} of {_gib(total)})"
    if not wanted.is_minimum and total - needed < rule.reserve:
        left = max(0, total - needed)
        return Shortage(
            f"the server would take {share} of the memory of {machine.name}, and leave {_gib(left)}: "
            f"less than the reserve of {_gib(rule.reserve)}",
            f"{_less(wanted, total, total - rule.reserve)}; `reserve` in builder.yaml sets what is left; {_FORCE}",
        )
    if needed > machine.available:
        servers = " and ".join(_named(service) for service in others)
        stops = "".join(f"`builder stop {service.labels[LABEL]}` makes room; " for service in others[:1])
        return Shortage(
            f"the server needs {share}, and {machine.name} has {_gib(machine.available)} of memory available"
            + (f" beside {servers}" if servers else ""),
            f"{stops}{_less(wanted, total, machine.available)}; {_FORCE}",
        )
    return None


def _named(service: Service) -> str:
    label = service.labels.get(GPU_MEMORY)
    return service.labels[LABEL] + (f" (which was given {label})" if label else "")


def _less(wanted: GpuMemory, total: int, fitting: int) -> str:
    """Advice to take no more than ``fitting`` bytes."""
    if wanted.gibibytes:
        return f"a smaller --gpu-memory-utilization-gb fits (up to {max(0, fitting) // gpu_memory.GIB})"
    share = math.floor(fitting / total * 100) / 100
    return f"`--gpu-mem {share:.2f}` would fit, if the model does" if share > 0 else "no share of it would fit"


def _gib(size: int) -> str:
    return f"{size / gpu_memory.GIB:.1f} GiB"
