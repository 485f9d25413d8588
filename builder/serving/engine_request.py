"""Export of a container for the Engine API: https://docs.docker.com/reference/api/engine/ (containers/create)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.container import ContainerSettings, HealthCheck

_SECOND = 1_000_000_000
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# Every probe adds three entries to the engine's event log, which holds 256, and which `list` reads for what happened to
# images. So the engine probes often while the server starts (engines before 25 have no such setting), and seldom once
# it has answered. One failure is enough then: whoever needs the current state probes at once (`running.answers`).
_STARTING_INTERVAL = 15
_INTERVAL = 600
_RETRIES = 1


def request_body(settings: ContainerSettings, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the body of the request; secrets are taken from ``environ``, if they are set."""
    secrets = {name: environ[name] for name in settings.secrets if name in environ}
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in settings.ports:
        binding = {"HostPort": str(port.port), **({"HostIp": port.address} if port.address else {})}
        bindings.setdefault(f"{port.inside}/{port.protocol}", []).append(binding)
    return {
        "Image": settings.image,
        # Where it is left out, the image's own runs the command; an empty one runs none.
        **({} if settings.keep_entrypoint else {"Entrypoint": []}),
        "Cmd": list(settings.argv),
        "Env": [f"{name}={value}" for name, value in {**settings.env, **secrets}.items()],
        "Labels": dict(settings.labels),
        "Healthcheck": _health(settings.health) if settings.health else {"Test": ["NONE"]},
        "StopSignal": settings.stop_signal,
        "StopTimeout": settings.stop_seconds,
        "ExposedPorts": {port: {} for port in bindings},
        "HostConfig": {
            "NetworkMode": settings.network,
            "PortBindings": bindings,
            "IpcMode": settings.ipc,
            **({"ShmSize": _bytes(settings.shm_size)} if settings.shm_size else {}),
            "Ulimits": [{"Name": name, "Soft": limit, "Hard": limit} for name, limit in settings.ulimits.items()],
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": mount.source,
                    "Target": mount.target,
                    "ReadOnly": mount.read_only,
                    # The engine may be on another machine, where only it can create the folder.
                    "BindOptions": {"CreateMountpoint": mount.ours},
                }
                for mount in settings.mounts
            ],
            "RestartPolicy": {"Name": settings.restart},
            "Init": settings.init,
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in settings.devices
            ],
            "CapAdd": list(settings.capabilities),
            **({"Memory": _bytes(settings.memory)} if settings.memory else {}),
            **({"MemorySwap": _bytes(settings.memory_swap)} if settings.memory_swap else {}),
            **({"PidsLimit": settings.pids} if settings.pids else {}),
            "DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}] if settings.gpus else [],
        },
    }


def _health(health: HealthCheck) -> dict[str, Any]:
    return {
        "Test": ["CMD", *health.argv],
        "Interval": _INTERVAL * _SECOND,
        "Timeout": health.timeout * _SECOND,
        "Retries": _RETRIES,
        "StartPeriod": health.start_period * _SECOND,
        "StartInterval": _STARTING_INTERVAL * _SECOND,
    }


def _bytes(size: str) -> int:
    """Returns ``16g`` as a number of bytes."""
    unit = _UNITS.get(size[-1].lower())
    return int(size[:-1]) * unit if unit else int(size)
