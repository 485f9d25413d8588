"""Export as the configuration of llama-swap, which starts the model that a request is for, and stops the one before:
https://github.com/mostlygeek/llama-swap/blob/main/config.example.yaml.

It puts macros (``${NAME}``) into a command wherever they stand, drops lines that begin with ``#``, and splits the rest
as a shell does. So a command is one line, and nothing in it looks like a macro.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from builder.definitions.recipes.container import STARTING_SECONDS
from builder.serving.exports import script
from builder.serving.exports.routing import unique_names
from builder.serving.running import STARTED_BY
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.definitions.recipes.container import ContainerSettings
    from builder.serving.exports.routing import RoutedModel

_PROGRAM = "llama-swap"


def render(models: Sequence[RoutedModel], home: str) -> str:
    """Returns the configuration. Paths below ``home``, the user's, become ``$HOME``, so that others can use it."""
    further = unique_names(models)
    document = {
        # Weights of a large model take minutes to load.
        "healthCheckTimeout": STARTING_SECONDS,
        "models": {model.model: _entry(model, further[model.model], home) for model in models},
    }
    return f"# Written by `builder export`: each model from its numbered image.\n{yaml_file.dump(document)}"


def _entry(model: RoutedModel, further: tuple[str, ...], home: str) -> dict[str, Any]:
    served = model.served[0] if model.served else model.model
    return {
        "description": f"served by {model.image}",
        "cmd": f"bash -c {shlex.quote(_line(model.container, home))}",
        "cmdStop": f"docker stop {model.container.name}",
        "proxy": f"http://127.0.0.1:{model.port}",
        **({"useModelName": served} if served != model.model else {}),
        **({"aliases": list(further)} if further else {}),
        "metadata": {"image": model.image},
    }


def _line(settings: ContainerSettings, home: str) -> str:
    """The line of bash that runs the container in the foreground, so that it ends with llama-swap's process; it is gone
    then, and never restarted by the engine."""
    labels = {**settings.labels, STARTED_BY: _PROGRAM}
    folders = " ".join(_in_home(mount.source, home) for mount in settings.mounts if mount.ours)
    words = [
        "exec docker run --rm --pull never" + (" --init" if settings.init else ""),
        *(f"{name} {_quoted(value)}" for name, value in script.options(settings, labels) if name != "--restart"),
        *(
            f"--volume {_in_home(mount.source, home)}:{_quoted(mount.target + (':ro' if mount.read_only else ''))}"
            for mount in settings.mounts
        ),
        *script.command(settings, _quoted),
    ]
    return (f"mkdir -p -- {folders} && " if folders else "") + " ".join(words)


def _quoted(text: str) -> str:
    """``text`` as one word of bash, on one line, with no brace after a dollar sign."""
    if "\n" not in text and "\r" not in text and "${" not in text:
        return shlex.quote(text)
    escapes = {"\\": r"\\", "'": r"\'", "\n": r"\n", "\r": r"\r", "{": r"\x7b"}
    return f"$'{''.join(escapes.get(letter, letter) for letter in text)}'"


def _in_home(path: str, home: str) -> str:
    return f'"$HOME"{_quoted(path[len(home) :])}' if home and path.startswith(f"{home}/") else _quoted(path)
