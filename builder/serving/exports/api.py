"""A container as an engine's API takes it: https://docs.docker.com/reference/api/engine/ (containers/create)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.container import ContainerSettings, HealthCheck

_SECOND = 1_000_000_000
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# Every probe is three entries in the engine's record of events, which holds 256 of them, and in which `list` looks for
# what happened to images. So the engine asks often while the server starts (engines before 25 know no such thing), and
# seldom once it has answered. One failure says enough then: whoever needs to know asks at once (`running.answers`).
_STARTING_INTERVAL = 15
_INTERVAL = 600
_RETRIES = 1


def write(settings: ContainerSettings, environ: Mapping[str, str]) -> dict[str, Any]:
    """The body of the request; the secrets are taken from ``environ``, where they are set."""
    secrets = {name: environ[name] for name in settings.secrets if name in environ}
    return {
        "Image": settings.image,
        # Not left out: that would mean the image's own.
        "Entrypoint": [],
        "Cmd": list(settings.argv),
        "Env": [f"{name}={value}" for name, value in {**settings.env, **secrets}.items()],
        "Labels": dict(settings.labels),
        "Healthcheck": _health(settings.health) if settings.health else {"Test": ["NONE"]},
        "StopSignal": settings.stop_signal,
        "StopTimeout": settings.stop_seconds,
        "ExposedPorts": {f"{port}/tcp": {} for port in settings.ports},
        "HostConfig": {
            "NetworkMode": settings.network,
            "PortBindings": {f"{port}/tcp": [{"HostPort": str(port)}] for port in settings.ports},
            "IpcMode": settings.ipc,
            **({"ShmSize": _bytes(settings.shm_size)} if settings.shm_size else {}),
            "Ulimits": [{"Name": name, "Soft": limit, "Hard": limit} for name, limit in settings.ulimits.items()],
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": mount.source,
                    "Target": mount.target,
                    # Of a machine where nobody else could make it.
                    "BindOptions": {"CreateMountpoint": True},
                }
                for mount in settings.mounts
            ],
            "RestartPolicy": {"Name": settings.restart},
            "Init": settings.init,
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
    """``16g`` as a number."""
    unit = _UNITS.get(size[-1].lower())
    return int(size[:-1]) * unit if unit else int(size)
