"""The versions of the engine and of buildx, and the oldest supported ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from builder.base.errors import EngineError
from builder.engine.client import environment, request

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

    from builder.engine.client import Endpoint


def query_buildx(endpoint: Endpoint, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str] | None:
    """Runs buildx for this engine; None if it does not start, or does not end within ``timeout`` seconds."""
    import os
    import subprocess

    argv = [*endpoint.buildx, *arguments]
    environ = {**os.environ, **environment(endpoint)}
    try:
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


# 23.0 is the first engine that records the provenance of a build (BuildKit 0.11).
OLDEST_ENGINE = (23, 0)
# 0.14 is the first to write what a build used (materials) into the metadata file: https://github.com/docker/buildx/pull/2280
OLDEST_BUILDX = (0, 14)
_INSTALL = (
    "Debian and Ubuntu: Docker's own packages docker-ce and docker-buildx-plugin "
    "(https://docs.docker.com/engine/install/); DGX OS: `sudo apt install docker-ce docker-buildx-plugin`; "
    "or a private engine: `scripts/engine up`"
)
_BUILDX_WAIT = 20.0


@dataclass(frozen=True)
class Versions:
    """The versions of an engine and of buildx; the engine's ``platform`` (``linux/arm64``), the folder of all its data
    on its machine (``data_root``), and whether it can give a container an NVIDIA GPU and limit its memory and swap."""

    engine: str
    buildx: str
    store: Literal["containerd", "classic"]
    platform: str
    data_root: str
    nvidia: bool
    limits_memory: bool


def require_engine(endpoint: Endpoint) -> str:
    """The engine's version and platform, in words. Raises EngineError if it does not answer or is too old."""
    version = _version(endpoint)
    return f"Docker {version.get('Version')} on {version.get('Os')}/{version.get('Arch')}"


def require_supported(endpoint: Endpoint) -> Versions:
    """Returns the versions. Raises EngineError, with what to install, if anything is missing or too old."""
    version = _version(endpoint)
    buildx_version = buildx(endpoint)
    if _numbers(buildx_version) < OLDEST_BUILDX:
        oldest = ".".join(map(str, OLDEST_BUILDX))
        raise EngineError(f"docker buildx is {buildx_version}; {oldest} is the oldest supported version", hint=_INSTALL)
    info = request(endpoint, "GET", "/info", timeout=30)
    return Versions(
        engine=str(version.get("Version", "")),
        buildx=buildx_version,
        # Only the containerd store reports the snapshotter as a driver type.
        store="containerd" if "io.containerd.snapshotter" in str(info.get("DriverStatus")) else "classic",
        platform=f"{version.get('Os')}/{version.get('Arch')}",
        data_root=str(info.get("DockerRootDir", "")),
        nvidia=_nvidia(info),
        limits_memory=bool(info.get("MemoryLimit", True)) and bool(info.get("SwapLimit", True)),
    )


def has_nvidia(endpoint: Endpoint) -> bool:
    return _nvidia(request(endpoint, "GET", "/info", timeout=30))


def _nvidia(info: Mapping[str, Any]) -> bool:
    # By CDI, the Container Device Interface, engines from 28.2 on know devices.
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    return "nvidia" in (info.get("Runtimes") or {}) or any(each.startswith("nvidia.com/gpu=") for each in devices)


def platform(endpoint: Endpoint) -> str:
    version = request(endpoint, "GET", "/version", timeout=10)
    return f"{version.get('Os')}/{version.get('Arch')}"


def buildx(endpoint: Endpoint) -> str:
    """Returns the version of buildx. Raises EngineError if buildx is missing."""
    result = query_buildx(endpoint, "version", timeout=_BUILDX_WAIT)
    # `github.com/docker/buildx v0.29.1 a32761a…`; distributions leave the v out or add to the number.
    match = re.search(r"\bv?(\d+\.\d+\S*)", result.stdout) if result else None
    if not result or result.returncode or not match:
        raise EngineError(
            f"`{' '.join(endpoint.buildx)}` does not run: building needs Docker's buildx plugin", hint=_INSTALL
        )
    return match[1]


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version; (0,) without any, which is older than everything."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)


def _version(endpoint: Endpoint) -> dict[str, Any]:
    version: dict[str, Any] = request(endpoint, "GET", "/version", timeout=10)
    engine = str(version.get("Version", ""))
    if _numbers(engine) < OLDEST_ENGINE:
        raise EngineError(
            f"the Docker engine at {endpoint.host} is {engine}; 23.0 is the oldest supported version", hint=_INSTALL
        )
    return version
