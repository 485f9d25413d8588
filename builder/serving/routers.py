"""Models for programs that route requests to servers: what each model is, then LiteLLM, llama-swap and OpenCode."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder.base import yaml_file
from builder.definitions.command import option
from builder.definitions.container import STARTING_SECONDS
from builder.serving import compose
from builder.serving.running import STARTED_BY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.definitions.command import ServeCommand
    from builder.definitions.container import ContainerSettings
    from builder.definitions.recipe import Recipe


@dataclass(frozen=True)
class RoutedModel:
    """A model that a router leads to: the names by which its server knows it, the image and the container that serve
    it, and the port of the machine that it answers on."""

    model: str
    served: tuple[str, ...]
    image: str
    container: ContainerSettings
    port: int

    @property
    def served_as(self) -> str:
        """The name by which its server knows it."""
        return self.served[0] if self.served else self.model


def shared_ports(models: Sequence[RoutedModel]) -> Iterator[str]:
    """A line for each port that several models answer on: one of them at a time."""
    by_port: dict[int, list[str]] = defaultdict(list)
    for model in models:
        by_port[model.port].append(model.model)
    for port, names in sorted(by_port.items()):
        if len(names) > 1:
            yield f"{', '.join(names)} share port {port}: one is served at a time, unless its recipe gets another"


def _further_names(models: Sequence[RoutedModel]) -> dict[str, list[str]]:
    """The further names of each model that no other one has: a router leads each name to one place."""
    names = {model.model: dict.fromkeys((model.model, *model.served)) for model in models}
    owners = Counter(name for own in names.values() for name in own)
    return {model: [name for name in own if owners[name] == 1 and name not in names] for model, own in names.items()}


# Export as the model list of LiteLLM's proxy, which leads requests to servers that run already:
# https://docs.litellm.ai/docs/proxy/configs, https://docs.litellm.ai/docs/providers/vllm.


def render_litellm(models: Sequence[RoutedModel], address: str) -> str:
    """Returns the configuration; ``address`` is the servers' host for the proxy. LiteLLM chooses among entries of one
    name, so each name is of one model."""
    host = f"[{address}]" if ":" in address else address
    further = _further_names(models)
    entries = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"hosted_vllm/{model.served_as}",
                "api_base": f"http://{host}:{model.port}/v1",
            },
            "model_info": {"image": model.image},
        }
        for model in models
        for name in (model.model, *further[model.model])
    ]
    text = yaml_file.dump({"model_list": entries})
    return f"# Written by `builder export`. It leads to servers that run: `builder run MODEL` starts one.\n{text}"


# Export as the configuration of llama-swap, which starts the model that a request is for, and stops the one before:
# https://github.com/mostlygeek/llama-swap/blob/main/config.example.yaml. It puts macros (``${NAME}``) into a command
# wherever they stand, drops lines that begin with ``#``, and splits the rest as a shell does. So a command is one
# line, and nothing in it looks like a macro.


def render_llama_swap(models: Sequence[RoutedModel], home: str) -> str:
    """Returns the configuration. Paths below ``home``, the user's, become ``$HOME``, so that others can use it."""
    further = _further_names(models)
    entries = {
        model.model: {
            "description": f"served by {model.image}",
            "cmd": f"bash -c {shlex.quote(_line(model.container, home))}",
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


def _line(settings: ContainerSettings, home: str) -> str:
    """The line of bash that runs the container in the foreground, so that it ends with llama-swap's process."""
    labelled = replace(settings, labels={**settings.labels, STARTED_BY: "llama-swap"})
    folders = " ".join(compose.in_home(mount.source, home, _quoted) for mount in settings.mounts if mount.ours)
    line = " ".join(compose.docker_run(labelled, "--rm", home, _quoted))
    return f"mkdir -p -- {folders} && {line}" if folders else line


def _quoted(text: str) -> str:
    """``text`` as one word of bash, on one line, with no brace after a dollar sign."""
    if "\n" not in text and "\r" not in text and "${" not in text:
        return shlex.quote(text)
    escapes = {"\\": r"\\", "'": r"\'", "\n": r"\n", "\r": r"\r", "{": r"\x7b"}
    return f"$'{''.join(escapes.get(letter, letter) for letter in text)}'"


# Export of a served model as a provider of OpenCode: https://opencode.ai/docs/providers/#custom-provider.

# OpenCode takes a missing limit for 0, and then requests no output at all:
# https://github.com/anomalyco/opencode/issues/22587
DEFAULT_CONTEXT = 32_768
LONGEST_OUTPUT = 32_768
# What it asks for at most is taken off the context, which it compacts when the rest is used: an output as long as the
# context leaves nothing (https://github.com/anomalyco/opencode/blob/dev/packages/opencode/src/session/compaction.ts).
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
    max_model_len = option(command.words, "--max-model-len") or ""
    context = int(max_model_len) if max_model_len.isascii() and max_model_len.isdecimal() else DEFAULT_CONTEXT
    return {
        "name": recipe.name,
        "tool_call": "--enable-auto-tool-choice" in command.words,
        "reasoning": option(command.words, "--reasoning-parser") is not None,
        "modalities": {"input": ["text", *_images(command)], "output": ["text"]},
        "limit": {"context": context, "output": min(context // _SHARE_OF_OUTPUT, LONGEST_OUTPUT)},
    }


def _images(command: ServeCommand) -> tuple[str, ...]:
    """Images, where the command speaks of them and does not set them to none; text alone is what every model takes."""
    limit = option(command.words, "--limit-mm-per-prompt") or ""
    is_none = re.search(r"image\W*[=:]\W*0\b", limit) or "--language-model-only" in command.words
    return ("image",) if "image" in limit and not is_none else ()
