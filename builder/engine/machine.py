"""The machine that builds for an engine, and the engine's settings."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import processes
from builder.engine.client import request

if TYPE_CHECKING:
    from builder.engine.client import Endpoint


_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class MachineResources:
    """The resources of a machine: processors, bytes of memory in all, and those that are ``free``, None where that
    cannot be seen. ``data_root`` is the folder of the engine's images if it is on this machine, else empty."""

    processors: int
    total: int
    free: int | None
    data_root: str


def read_build_machine(endpoint: Endpoint, meminfo: Path = _MEMINFO) -> MachineResources | None:
    """Returns the resources of the machine that builds; None where another one than the engine's does."""
    if endpoint.builds_elsewhere:
        return None
    info = request(endpoint, "GET", "/info", timeout=30)
    total, free, data_root = int(info.get("MemTotal") or 0), None, ""
    sizes = processes.sizes(processes.text(meminfo))
    # A socket of this machine may lead into a virtual machine.
    if endpoint.host.startswith("unix://") and sizes.get("MemTotal") == total and "MemAvailable" in sizes:
        free, data_root = sizes["MemAvailable"], str(info.get("DockerRootDir") or "")
    return MachineResources(int(info.get("NCPU") or 1), total, free, data_root)


def free_disk(data_root: str) -> int | None:
    """Returns the bytes that are free in a folder of images; None where it cannot be looked at."""
    import shutil

    try:
        return shutil.disk_usage(data_root).free if data_root else None
    except OSError:
        return None


# The engine's own settings that decide how builds and servers fare: limits of memory, logs and BuildKit's cache.
# `/info` tells some; the rest is in the daemon's file alone (https://docs.docker.com/reference/cli/dockerd/), which
# is read where the engine is this machine's own.

FILE = Path("/etc/docker/daemon.json")
_UNITS = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


@dataclass(frozen=True)
class DaemonSettings:
    """The settings: if the engine can limit a container's memory and swap; if the logs of containers grow without a
    limit; and how many bytes BuildKit's garbage collection is told to keep, None where it is told nothing."""

    limits_memory: bool
    endless_logs: bool
    build_cache: int | None


def read_daemon_settings(endpoint: Endpoint, file: Path = FILE) -> DaemonSettings:
    info = request(endpoint, "GET", "/info", timeout=30)
    return parse(info, _settings(file) if endpoint.host.startswith("unix://") else None)


def parse(info: dict[str, Any], settings: dict[str, Any] | None) -> DaemonSettings:
    """The settings that ``/info`` and the daemon's file tell, which is None where it cannot be read."""
    collection = _mapping(_mapping((settings or {}).get("builder")).get("gc"))
    # Since engine 28 the first name stands for the second: https://docs.docker.com/build/cache/garbage-collection/
    kept = [collection.get(key) for key in ("defaultReservedSpace", "defaultKeepStorage", "defaultMaxUsedSpace")]
    sizes = [size for size in map(_size, kept) if size is not None and collection.get("enabled") is not False]
    unlimited = settings is not None and "max-size" not in _mapping(settings.get("log-opts"))
    return DaemonSettings(
        limits_memory=bool(info.get("MemoryLimit", True)) and bool(info.get("SwapLimit", True)),
        endless_logs=unlimited and info.get("LoggingDriver") == "json-file",
        build_cache=max(sizes, default=None),
    )


def _size(value: object) -> int | None:
    """A size as Docker writes it, ``20GB``; None for a share of the disk or nothing."""
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, str | int) else None
    return int(float(match[1]) * _UNITS[match[2].lower()]) if match else None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _settings(file: Path) -> dict[str, Any] | None:
    try:
        return _mapping(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
