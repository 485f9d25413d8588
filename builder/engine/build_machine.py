"""The processors, the memory and the disk of the machine that builds for an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder import proc_files
from builder.engine.client.api import request

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint

_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class MachineResources:
    """The resources of a machine: processors, bytes of memory in all, and those that are ``free``, None where that
    cannot be seen. ``data_root`` is the folder of the engine's images if it is on this machine, else empty."""

    processors: int
    total: int
    free: int | None
    data_root: str


def look(endpoint: Endpoint, meminfo: Path = _MEMINFO) -> MachineResources | None:
    """Returns the resources of the machine that builds; None where another one than the engine's does."""
    if endpoint.builds_elsewhere:
        return None
    info = request(endpoint, "GET", "/info", timeout=30)
    total = int(info.get("MemTotal") or 0)
    free = _free_here(total, meminfo) if endpoint.host.startswith("unix://") else None
    return MachineResources(
        processors=int(info.get("NCPU") or 1),
        total=total,
        free=free,
        data_root=str(info.get("DockerRootDir") or "") if free is not None else "",
    )


def free_disk(data_root: str) -> int | None:
    """Returns the bytes that are free in a folder of images; None where it cannot be looked at."""
    import shutil

    try:
        return shutil.disk_usage(data_root).free if data_root else None
    except OSError:
        return None


def _free_here(total: int, meminfo: Path) -> int | None:
    """The memory that is free on this machine, if it is the engine's: a socket may lead into a virtual machine."""
    sizes = proc_files.sizes(proc_files.text(meminfo))
    return sizes.get("MemAvailable") if sizes.get("MemTotal") == total else None
