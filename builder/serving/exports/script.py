"""Export of a container as a shell script with a plain ``docker run``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.definitions.recipes.container import ContainerSettings, HealthCheck


def render(settings: ContainerSettings, home: str) -> str:
    """Returns the script. Paths below ``home``, the user's, become ``$HOME``, so that others can use it."""
    folders = " ".join(_in_home(mount.source, home) for mount in settings.mounts if mount.ours)
    volumes = [_in_home(mount.source, home) for mount in settings.mounts if not mount.ours]
    words = [
        "exec docker run --detach --pull never" + (" --init" if settings.init else ""),
        *(f"{name} {shlex.quote(value)}" for name, value in options(settings, settings.labels)),
        *(
            f"--volume {_in_home(mount.source, home)}:{shlex.quote(mount.target + (':ro' if mount.read_only else ''))}"
            for mount in settings.mounts
        ),
        *command(settings, shlex.quote),
    ]
    return "\n".join(
        [
            "#!/bin/sh",
            f"# Serves from {settings.image}; written by `builder export`.",
            f"# Its log: docker logs -f {settings.name}; to end it: docker rm -f {settings.name}",
            "set -eu",
            "",
            # The engine would make an empty folder in the place of a volume that is missing.
            *(f"[ -e {volume} ] || {{ echo {volume} is missing >&2; exit 1; }}" for volume in volumes),
            *([f"mkdir -p -- {folders}"] if folders else []),
            " \\\n  ".join(words),
            "",
        ]
    )


def command(settings: ContainerSettings, quote: Callable[[str], str]) -> tuple[str, ...]:
    """The last words of `docker run`, each in ``quote``: the image, and what runs in it."""
    if settings.keep_entrypoint:
        return (" ".join(map(quote, (settings.image, *settings.argv))),)
    program, *arguments = settings.argv
    return f"--entrypoint {quote(program)}", " ".join(map(quote, (settings.image, *arguments)))


def options(settings: ContainerSettings, labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The options of `docker run` for the container, with these ``labels``: each its name and its value."""
    yield "--name", settings.name
    if settings.gpus:
        yield "--gpus", "all"
    yield "--network", settings.network
    yield from (("--publish", str(port)) for port in settings.ports)
    yield "--ipc", settings.ipc
    if settings.shm_size:
        yield "--shm-size", settings.shm_size
    yield from (("--device", path) for path in settings.devices)
    yield from (("--cap-add", capability) for capability in settings.capabilities)
    limits = {"--memory": settings.memory, "--memory-swap": settings.memory_swap, "--pids-limit": settings.pids}
    yield from ((option, str(limit)) for option, limit in limits.items() if limit)
    yield from (("--ulimit", f"{name}={limit}") for name, limit in settings.ulimits.items())
    yield from (("--env", f"{name}={value}") for name, value in settings.env.items())
    # Without a value, so that it comes from the environment in which the script is run.
    yield from (("--env", name) for name in settings.secrets)
    yield from (("--label", f"{name}={value}") for name, value in labels.items())
    if settings.health:
        yield from _health(settings.health)

    yield "--restart", settings.restart
    yield "--stop-signal", settings.stop_signal
    yield "--stop-timeout", str(settings.stop_seconds)


def _health(health: HealthCheck) -> Iterator[tuple[str, str]]:
    yield "--health-cmd", shlex.join(health.argv)
    yield "--health-interval", f"{health.interval}s"
    yield "--health-timeout", f"{health.timeout}s"
    yield "--health-retries", str(health.retries)
    yield "--health-start-period", f"{health.start_period}s"


def _in_home(path: str, home: str) -> str:
    if home and path.startswith(f"{home}/"):
        return f'"$HOME"{shlex.quote(path[len(home) :])}'
    return shlex.quote(path)
