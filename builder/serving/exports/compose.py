"""Export of a container as a compose file: https://github.com/compose-spec/compose-spec/blob/main/spec.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.yaml import yaml_file

if TYPE_CHECKING:
    from builder.definitions.recipes.container import ContainerSettings, HealthCheck

_ALL_GPUS = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
_GPUS = {"deploy": {"resources": {"reservations": {"devices": [_ALL_GPUS]}}}}


def render(settings: ContainerSettings, home: str) -> str:
    """Returns the compose file. Paths below ``home``, the user's, become ``${HOME}``, so that others can use it."""
    document = {"name": settings.name, "services": {settings.name: _service(settings, home)}}
    return f"# Serves from {settings.image}; written by `builder export`.\n{yaml_file.dump(document)}"


def _service(settings: ContainerSettings, home: str) -> dict[str, Any]:
    return {
        "image": _escape(settings.image),
        # The number is an image of this machine: a registry has another one, or none.
        "pull_policy": "never",
        **({} if settings.keep_entrypoint else {"entrypoint": []}),
        "command": [_escape(word) for word in settings.argv],
        "environment": {
            **{name: _escape(value) for name, value in settings.env.items()},
            # Without a value, so that it comes from the environment in which the file is used.
            **dict.fromkeys(settings.secrets),
        },
        "network_mode": settings.network,
        **({"ports": [str(port) for port in settings.ports]} if settings.ports else {}),
        "ipc": settings.ipc,
        **({"shm_size": settings.shm_size} if settings.shm_size else {}),
        **({"devices": [f"{path}:{path}" for path in settings.devices]} if settings.devices else {}),
        **({"cap_add": list(settings.capabilities)} if settings.capabilities else {}),
        **({"mem_limit": settings.memory} if settings.memory else {}),
        **({"memswap_limit": settings.memory_swap} if settings.memory_swap else {}),
        **({"pids_limit": settings.pids} if settings.pids else {}),
        "ulimits": dict(settings.ulimits),
        "volumes": [
            {
                "type": "bind",
                "source": _in_home(mount.source, home),
                "target": _escape(mount.target),
                **({"read_only": True} if mount.read_only else {}),
                "bind": {"create_host_path": mount.ours},
            }
            for mount in settings.mounts
        ],
        "labels": {name: _escape(value) for name, value in settings.labels.items()},
        **({"healthcheck": _health(settings.health)} if settings.health else {}),
        "init": settings.init,
        "restart": settings.restart,
        "stop_signal": settings.stop_signal,
        "stop_grace_period": f"{settings.stop_seconds}s",
        **(_GPUS if settings.gpus else {}),
    }


def _health(health: HealthCheck) -> dict[str, Any]:
    return {
        "test": ["CMD", *map(_escape, health.argv)],
        "interval": f"{health.interval}s",
        "timeout": f"{health.timeout}s",
        "retries": health.retries,
        "start_period": f"{health.start_period}s",
    }


def _escape(text: str) -> str:
    """Escapes text so that compose substitutes no variables in it."""
    return text.replace("$", "$$")


def _in_home(path: str, home: str) -> str:
    return f"${{HOME}}{_escape(path[len(home) :])}" if home and path.startswith(f"{home}/") else _escape(path)
