"""This page exports how a model is served: as a compose file, a script or a recipe, and for LiteLLM, llama-swap and
OpenCode."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from builder.base import yaml_file
from builder.base.errors import FileProblemsError, UsageError
from builder.base.values import dataclass, replace
from builder.definitions import command as commands
from builder.definitions.container import STARTING_SECONDS, ContainerSettings
from builder.serving.running import STARTED_BY

if TYPE_CHECKING:
    from builder.definitions.command import ServeCommand
    from builder.definitions.recipe import Recipe


# Export of a container as a compose file: https://github.com/compose-spec/compose-spec/blob/main/spec.md.

_GPUS = {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}}


def render_compose(settings: ContainerSettings, home: str) -> str:
    """Returns the compose file. Paths below the user's ``home`` become ``${HOME}``, so that others can use the file."""
    document = {"name": settings.name, "services": {settings.name: _service(settings, home)}}
    return f"# Serves from {settings.image}; written by `builder export`.\n{yaml_file.dump(document)}"


def _service(settings: ContainerSettings, home: str) -> dict[str, Any]:
    def escape(text: str) -> str:  # compose then substitutes no variables in it
        return text.replace("$", "$$")

    def source(path: str) -> str:
        return f"${{HOME}}{escape(path[len(home) :])}" if home and path.startswith(f"{home}/") else escape(path)

    health = settings.health
    service = {
        "image": escape(settings.image),
        # Only this machine has the image of this number. A registry may have another image of that name.
        "pull_policy": "never",
        "entrypoint": None if settings.keep_entrypoint else [],
        "command": [escape(word) for word in settings.argv],
        # A secret has no value: it comes from the environment in which the file is used.
        "environment": {name: escape(value) for name, value in settings.env.items()} | dict.fromkeys(settings.secrets),
        "network_mode": settings.network,
        "ports": [str(port) for port in settings.ports] or None,
        "ipc": settings.ipc,
        "shm_size": settings.shm_size or None,
        "devices": [f"{path}:{path}" for path in settings.devices] or None,
        "cap_add": list(settings.capabilities) or None,
        "mem_limit": settings.memory or None,
        "memswap_limit": settings.memory_swap or None,
        "pids_limit": settings.pids or None,
        "ulimits": dict(settings.ulimits),
        "volumes": [
            {
                "type": "bind",
                "source": source(mount.source),
                "target": escape(mount.target),
                **({"read_only": True} if mount.read_only else {}),
                "bind": {"create_host_path": mount.ours},
            }
            for mount in settings.mounts
        ],
        "labels": {name: escape(value) for name, value in settings.labels.items()},
        "healthcheck": health
        and {
            "test": ["CMD", *map(escape, health.argv)],
            "interval": f"{health.interval}s",
            "timeout": f"{health.timeout}s",
            "retries": health.retries,
            "start_period": f"{health.start_period}s",
        },
        "init": settings.init,
        "restart": settings.restart,
        "stop_signal": settings.stop_signal,
        "stop_grace_period": f"{settings.stop_seconds}s",
        "deploy": _GPUS if settings.gpus else None,
    }
    return {name: value for name, value in service.items() if value is not None}


# Export of a container as a shell script that starts it with `docker run` on any machine with the image.


def render_script(settings: ContainerSettings, home: str) -> str:
    """Returns the script. Paths below the user's ``home`` become ``$HOME``, so that others can use the script."""
    volumes = [_in_home(mount.source, home, shlex.quote) for mount in settings.mounts if not mount.ours]
    folders = " ".join(_in_home(mount.source, home, shlex.quote) for mount in settings.mounts if mount.ours)
    lines = [
        "#!/bin/sh",
        f"# Serves from {settings.image}; written by `builder export`.",
        f"# Its log: docker logs -f {settings.name}; to stop it: docker rm -f {settings.name}",
        "set -eu",
        "",
        # The engine would make an empty folder in place of a missing volume.
        *(f"[ -e {volume} ] || {{ echo {volume} is missing >&2; exit 1; }}" for volume in volumes),
        *([f"mkdir -p -- {folders}"] if folders else []),
        " \\\n  ".join(_docker_run(settings, "--detach", home, shlex.quote)),
    ]
    return "\n".join(lines) + "\n"


def _docker_run(settings: ContainerSettings, how: str, home: str, quote: Callable[[str], str]) -> list[str]:
    """The words of `docker run`, each quoted by ``quote``. ``how`` is ``--detach``, or ``--rm`` for a container that
    ends with its caller and is never restarted by the engine."""
    if settings.keep_entrypoint:
        command = [" ".join(map(quote, (settings.image, *settings.argv)))]
    else:
        program, *arguments = settings.argv
        command = [f"--entrypoint {quote(program)}", " ".join(map(quote, (settings.image, *arguments)))]
    return [
        f"exec docker run {how} --pull never" + (" --init" if settings.init else ""),
        *(f"{name} {quote(value)}" for name, value in _options(settings) if how != "--rm" or name != "--restart"),
        *(
            f"--volume {_in_home(mount.source, home, quote)}:{quote(mount.target + (':ro' if mount.read_only else ''))}"
            for mount in settings.mounts
        ),
        *command,
    ]


def _in_home(path: str, home: str, quote: Callable[[str], str]) -> str:
    """``path`` as a word of the shell, with ``$HOME`` in place of ``home``."""
    return f'"$HOME"{quote(path[len(home) :])}' if home and path.startswith(f"{home}/") else quote(path)


def _options(settings: ContainerSettings) -> Iterator[tuple[str, str]]:
    """The options of `docker run`, each with its name and its value."""
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


# Export as a recipe of version 1. With it, the community's launchers serve one numbered image unchanged.

_KEYS = (
    *("recipe_version", "name", "description", "model", "container", "solo_only", "cluster_only"),
    *("mods", "defaults", "env"),
)


def render_recipe(recipe: Recipe, command: ServeCommand, image: str, mods: list[str]) -> str:
    """Returns the recipe on ``image``. It has only the ``mods`` that are not baked into the image, because a launcher
    would apply the others a second time. It has no build arguments, which could make a launcher build another image."""
    data: dict[str, Any] = yaml_file.load(recipe.text, recipe.file)
    values = {**data, "recipe_version": "1", "container": image, "mods": mods}
    document = {key: values[key] for key in _KEYS if values.get(key) not in (None, [])}
    text = yaml_file.dump({**document, "command": yaml_file.Block(_command(recipe, command))})
    return f"# Serves from {image}; written by `builder export`.\n{text}"


def _command(recipe: Recipe, command: ServeCommand) -> str:
    """Returns the command's template, with `model_revision` written out, because launchers do not know that key."""
    revision = command.words[-2:]
    if recipe.revision is None or revision != ("--revision", recipe.revision):
        return recipe.command
    before = re.sub(r"[ \t\n\\]+\Z", "", recipe.command)
    quoted = shlex.quote(recipe.revision).replace("{", "{{").replace("}", "}}")
    text = f"{before} \\\n  --revision {quoted}\n"
    is_same = False
    with suppress(FileProblemsError):  # a comment, a quote or a backslash at the end may swallow what was added
        rendered = commands.render_command(replace(recipe, command=text, revision=None), {})
        is_same = not command.is_script and rendered.words == command.words
    if not is_same:
        message = f"{recipe.file}: other launchers ignore `model_revision`, and builder cannot add it to this command"
        raise UsageError(message, hint=f"write `--revision {recipe.revision}` into the command")
    return text


# Models for programs that route requests to servers.


@dataclass(frozen=True)
class RoutedModel:
    """A model behind a router: the names by which its server knows it, its image, its container and its port."""

    model: str
    served: tuple[str, ...]
    image: str
    container: ContainerSettings
    port: int

    @property
    def served_as(self) -> str:
        """The name by which a router requests the model from its server."""
        return self.served[0] if self.served else self.model


def shared_ports(models: Sequence[RoutedModel]) -> Iterator[str]:
    """A line for each port that several models use."""
    by_port: dict[int, list[str]] = defaultdict(list)
    for model in models:
        by_port[model.port].append(model.model)
    for port, names in sorted(by_port.items()):
        if len(names) > 1:
            yield f"{', '.join(names)} share port {port}: only one can run at a time, unless a recipe gets another port"


def _further_names(models: Sequence[RoutedModel]) -> dict[str, list[str]]:
    """The further names of each model that no other model has, because a router sends each name to one server."""
    names = {model.model: dict.fromkeys((model.model, *model.served)) for model in models}
    owners = Counter(name for own in names.values() for name in own)
    return {model: [name for name in own if owners[name] == 1 and name not in names] for model, own in names.items()}


# Export as the model list of LiteLLM's proxy, which sends requests to running servers:
# https://docs.litellm.ai/docs/proxy/configs, https://docs.litellm.ai/docs/providers/vllm.


def render_litellm(models: Sequence[RoutedModel], address: str) -> str:
    """Returns the configuration; ``address`` is the servers' host for the proxy. Each name belongs to one model."""
    host = f"[{address}]" if ":" in address else address
    further = _further_names(models)
    entries = [
        {
            "model_name": name,
            "litellm_params": {"model": f"hosted_vllm/{model.served_as}", "api_base": f"http://{host}:{model.port}/v1"},
            "model_info": {"image": model.image},
        }
        for model in models
        for name in (model.model, *further[model.model])
    ]
    text = yaml_file.dump({"model_list": entries})
    return f"# Written by `builder export`. The servers must be running: `builder run MODEL` starts one.\n{text}"


# Export as the configuration of llama-swap, which starts the requested model and stops the previous one:
# https://github.com/mostlygeek/llama-swap/blob/main/config.example.yaml. llama-swap replaces macros (``${NAME}``)
# anywhere in a command, drops lines that begin with ``#``, and splits the rest as a shell does. So a command is one
# line, and nothing in it looks like a macro.


def render_llama_swap(models: Sequence[RoutedModel], home: str) -> str:
    """Returns the configuration. Paths below the user's ``home`` become ``$HOME``, so that others can use the file."""
    further = _further_names(models)
    entries = {
        model.model: {
            "description": f"served by {model.image}",
            "cmd": f"bash -c {shlex.quote(_foreground_line(model.container, home))}",
            "cmdStop": f"docker stop {model.container.name}",
            "proxy": f"http://127.0.0.1:{model.port}",
            **({"useModelName": model.served_as} if model.served_as != model.model else {}),
            **({"aliases": further[model.model]} if further[model.model] else {}),
            "metadata": {"image": model.image},
        }
        for model in models
    }
    # Weights of a large model take minutes to load.
    text = yaml_file.dump({"healthCheckTimeout": STARTING_SECONDS, "models": entries})
    return f"# Written by `builder export`: each model from its numbered image.\n{text}"


def _foreground_line(settings: ContainerSettings, home: str) -> str:
    """The line of bash that runs the container in the foreground, so that the container ends with llama-swap's
    process."""
    labelled = replace(settings, labels={**settings.labels, STARTED_BY: "llama-swap"})
    folders = " ".join(_in_home(mount.source, home, _quoted) for mount in settings.mounts if mount.ours)
    line = " ".join(_docker_run(labelled, "--rm", home, _quoted))
    return f"mkdir -p -- {folders} && {line}" if folders else line


def _quoted(text: str) -> str:
    """``text`` as one word of bash, on one line, with no brace after a dollar sign."""
    if "\n" not in text and "\r" not in text and "${" not in text:
        return shlex.quote(text)
    escapes = {"\\": r"\\", "'": r"\'", "\n": r"\n", "\r": r"\r", "{": r"\x7b"}
    return f"$'{''.join(escapes.get(letter, letter) for letter in text)}'"


# Export of a served model as a provider of OpenCode: https://opencode.ai/docs/providers/#custom-provider.

# OpenCode treats a missing limit as 0, and then requests no output at all:
# https://github.com/anomalyco/opencode/issues/22587
DEFAULT_CONTEXT = 32_768
LONGEST_OUTPUT = 32_768
# OpenCode compacts the context when only this share is left. An output as long as the context would leave nothing
# (https://github.com/anomalyco/opencode/blob/dev/packages/opencode/src/session/compaction.ts).
_SHARE_OF_OUTPUT = 4
_PROVIDER = "vllm"


def render_opencode(recipe: Recipe, command: ServeCommand, address: str) -> str:
    """Returns the provider block; ``address`` is the server's host for OpenCode: ``127.0.0.1`` or another machine."""
    host = f"[{address}]" if ":" in address else address
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": f"vLLM on {address}",
        "options": {"baseURL": f"http://{host}:{command.port}/v1"},
        "models": {name: _model(recipe, command) for name in command.served},
    }
    document: dict[str, Any] = {"$schema": "https://opencode.ai/config.json"}
    if command.served:
        document["model"] = f"{_PROVIDER}/{command.served[0]}"
    document["provider"] = {_PROVIDER: provider}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _model(recipe: Recipe, command: ServeCommand) -> dict[str, Any]:
    max_model_len = commands.option(command.words, "--max-model-len") or ""
    context = commands.whole_number(max_model_len) or DEFAULT_CONTEXT
    # Every model accepts text. A model accepts images if the command names them and does not set their number to 0.
    images = commands.option(command.words, "--limit-mm-per-prompt") or ""
    has_none = re.search(r"image\W*[=:]\W*0\b", images) or "language-model-only" in map(commands.name_of, command.words)
    inputs = ["text", "image"] if "image" in images and not has_none else ["text"]
    return {
        "name": recipe.name,
        "tool_call": "enable-auto-tool-choice" in map(commands.name_of, command.words),
        "reasoning": commands.option(command.words, "--reasoning-parser") is not None,
        "modalities": {"input": inputs, "output": ["text"]},
        "limit": {"context": context, "output": min(context // _SHARE_OF_OUTPUT, LONGEST_OUTPUT)},
    }
