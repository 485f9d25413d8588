"""A served container as a compose file, a shell script, or a recipe that serves one numbered image as it is."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.base import yaml_file
from builder.base.errors import FileProblemsError, UsageError
from builder.definitions import command as commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.definitions.command import ServeCommand
    from builder.definitions.container import ContainerSettings
    from builder.definitions.recipe import Recipe


# Export of a container as a compose file: https://github.com/compose-spec/compose-spec/blob/main/spec.md.

_ALL_GPUS = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
_GPUS = {"deploy": {"resources": {"reservations": {"devices": [_ALL_GPUS]}}}}


def render_compose(settings: ContainerSettings, home: str) -> str:
    """Returns the compose file. Paths below ``home``, the user's, become ``${HOME}``, so that others can use it."""
    document = {"name": settings.name, "services": {settings.name: _service(settings, home)}}
    return f"# Serves from {settings.image}; written by `builder export`.\n{yaml_file.dump(document)}"


def _service(settings: ContainerSettings, home: str) -> dict[str, Any]:
    healthcheck = {}
    if health := settings.health:
        healthcheck["healthcheck"] = {
            "test": ["CMD", *map(_escape, health.argv)],
            "interval": f"{health.interval}s",
            "timeout": f"{health.timeout}s",
            "retries": health.retries,
            "start_period": f"{health.start_period}s",
        }
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
                "source": _source(mount.source, home),
                "target": _escape(mount.target),
                **({"read_only": True} if mount.read_only else {}),
                "bind": {"create_host_path": mount.ours},
            }
            for mount in settings.mounts
        ],
        "labels": {name: _escape(value) for name, value in settings.labels.items()},
        **healthcheck,
        "init": settings.init,
        "restart": settings.restart,
        "stop_signal": settings.stop_signal,
        "stop_grace_period": f"{settings.stop_seconds}s",
        **(_GPUS if settings.gpus else {}),
    }


def _escape(text: str) -> str:
    """Escapes text so that compose substitutes no variables in it."""
    return text.replace("$", "$$")


def _source(path: str, home: str) -> str:
    return f"${{HOME}}{_escape(path[len(home) :])}" if home and path.startswith(f"{home}/") else _escape(path)


# Export of a container as a shell script that starts it with `docker run`, for anywhere with the image.


def render_script(settings: ContainerSettings, home: str) -> str:
    """Returns the script. Paths below ``home``, the user's, become ``$HOME``, so that others can use it."""
    volumes = [in_home(mount.source, home, shlex.quote) for mount in settings.mounts if not mount.ours]
    folders = " ".join(in_home(mount.source, home, shlex.quote) for mount in settings.mounts if mount.ours)
    words = docker_run(settings, "--detach", home, shlex.quote)
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


def docker_run(settings: ContainerSettings, how: str, home: str, quote: Callable[[str], str]) -> list[str]:
    """The words of `docker run`, each as the shell takes it from ``quote``; ``how`` is ``--detach``, or ``--rm`` for a
    container that ends with its caller and that the engine never restarts."""
    if settings.keep_entrypoint:
        command = [" ".join(map(quote, (settings.image, *settings.argv)))]
    else:
        program, *arguments = settings.argv
        command = [f"--entrypoint {quote(program)}", " ".join(map(quote, (settings.image, *arguments)))]
    return [
        f"exec docker run {how} --pull never" + (" --init" if settings.init else ""),
        *(f"{name} {quote(value)}" for name, value in _options(settings) if how != "--rm" or name != "--restart"),
        *(
            f"--volume {in_home(mount.source, home, quote)}:{quote(mount.target + (':ro' if mount.read_only else ''))}"
            for mount in settings.mounts
        ),
        *command,
    ]


def in_home(path: str, home: str, quote: Callable[[str], str]) -> str:
    """``path`` as a word of the shell, with ``$HOME`` in place of ``home``."""
    return f'"$HOME"{quote(path[len(home) :])}' if home and path.startswith(f"{home}/") else quote(path)


def _options(settings: ContainerSettings) -> Iterator[tuple[str, str]]:
    """The options of `docker run`: each its name and its value."""
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
    yield from (("--label", f"{name}={value}") for name, value in settings.labels.items())
    if health := settings.health:
        yield "--health-cmd", shlex.join(health.argv)
        yield "--health-interval", f"{health.interval}s"
        yield "--health-timeout", f"{health.timeout}s"
        yield "--health-retries", str(health.retries)
        yield "--health-start-period", f"{health.start_period}s"
    yield "--restart", settings.restart
    yield "--stop-signal", settings.stop_signal
    yield "--stop-timeout", str(settings.stop_seconds)


# Export as a recipe of version 1, with which the community's launchers serve one numbered image exactly as it is.

_KEYS = (
    *("recipe_version", "name", "description", "model", "container", "solo_only", "cluster_only"),
    *("mods", "defaults", "env"),
)


def render_recipe(recipe: Recipe, command: ServeCommand, image: str, mods: list[str]) -> str:
    """Returns the recipe on ``image``, with only the ``mods`` that are not baked into it: a launcher would apply those
    a second time. It has no build arguments, which could make a launcher build another image."""
    data: dict[str, Any] = yaml_file.load(recipe.text, recipe.file)
    values = {**data, "recipe_version": "1", "container": image, "mods": mods}
    document = {key: values[key] for key in _KEYS if values.get(key) not in (None, [])}
    text = yaml_file.dump({**document, "command": yaml_file.Block(_command(recipe, command))})
    return f"# Serves from {image} as it is; written by `builder export`.\n{text}"


def _command(recipe: Recipe, command: ServeCommand) -> str:
    """Returns the command's template, with `model_revision` written out, as launchers do not know that key."""
    revision = command.words[-2:]
    if recipe.revision is None or revision != ("--revision", recipe.revision):
        return recipe.command
    before = re.sub(r"[ \t\n\\]+\Z", "", recipe.command)
    quoted = shlex.quote(recipe.revision).replace("{", "{{").replace("}", "}}")
    text = f"{before} \\\n  --revision {quoted}\n"
    if command.is_script or not _is_same(replace(recipe, command=text, revision=None), command):
        raise UsageError(
            f"{recipe.file}: other launchers know no `model_revision`, and it cannot be added to this command",
            hint="write --revision into the command",
        )
    return text


def _is_same(recipe: Recipe, command: ServeCommand) -> bool:
    """False where a comment, a quote or a backslash at the end takes what was added for a part of itself."""
    try:
        return commands.render_command(recipe, {}).words == command.words
    except FileProblemsError:
        return False
