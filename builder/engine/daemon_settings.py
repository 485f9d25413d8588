"""The engine's own settings that decide how builds and servers fare: limits of memory, logs and BuildKit's cache.

`/info` tells some; the rest is in the daemon's file alone (https://docs.docker.com/reference/cli/dockerd/), which is
read where the engine is this machine's own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.engine.client.api import request

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint

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


def read(endpoint: Endpoint, file: Path = FILE) -> DaemonSettings:
    """Reads the settings of the engine at ``endpoint``; ``file`` is the daemon's, for an engine that is here."""
    info = request(endpoint, "GET", "/info", timeout=30)
    return parse(info, _settings(file) if endpoint.host.startswith("unix://") else None)


def parse(info: dict[str, Any], settings: dict[str, Any] | None) -> DaemonSettings:
    """The settings that ``/info`` and the daemon's file tell, which is None where it cannot be read."""
    return DaemonSettings(
        limits_memory=bool(info.get("MemoryLimit", True)) and bool(info.get("SwapLimit", True)),
        endless_logs=info.get("LoggingDriver") == "json-file"
        and settings is not None
        and "max-size" not in _mapping(settings.get("log-opts")),
        build_cache=_kept(_mapping(_mapping((settings or {}).get("builder")).get("gc"))),
    )


def _kept(collection: dict[str, Any]) -> int | None:
    if collection.get("enabled") is False:
        return None
    # Since engine 28 the first name stands for the second: https://docs.docker.com/build/cache/garbage-collection/
    sizes = [
        _size(collection.get(key)) for key in ("defaultReservedSpace", "defaultKeepStorage", "defaultMaxUsedSpace")
    ]
    return max((size for size in sizes if size is not None), default=None)


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
