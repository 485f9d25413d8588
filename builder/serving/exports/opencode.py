"""Export of a served model as a provider of OpenCode: https://opencode.ai/docs/providers/#custom-provider."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from builder.definitions.recipes import arguments

if TYPE_CHECKING:
    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.recipe import Recipe

# OpenCode takes a missing limit for 0, and then requests no output at all:
# https://github.com/anomalyco/opencode/issues/22587
DEFAULT_CONTEXT = 32_768
LONGEST_OUTPUT = 32_768
# What it asks for at most is taken off the context, which it compacts when the rest is used: an output as long as the
# context leaves nothing (https://github.com/anomalyco/opencode/blob/dev/packages/opencode/src/session/compaction.ts).
_SHARE_OF_OUTPUT = 4
_PROVIDER = "vllm"


def render(recipe: Recipe, command: ServeCommand, address: str) -> str:
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
    max_model_len = arguments.option(command.words, "--max-model-len") or ""
    context = int(max_model_len) if max_model_len.isascii() and max_model_len.isdecimal() else DEFAULT_CONTEXT
    return {
        "name": recipe.name,
        "tool_call": "--enable-auto-tool-choice" in command.words,
        "reasoning": arguments.option(command.words, "--reasoning-parser") is not None,
        "modalities": {"input": ["text", *_images(command)], "output": ["text"]},
        "limit": {"context": context, "output": min(context // _SHARE_OF_OUTPUT, LONGEST_OUTPUT)},
    }


def _images(command: ServeCommand) -> tuple[str, ...]:
    """Images, where the command speaks of them and does not set them to none; text alone is what every model takes."""
    limit = arguments.option(command.words, "--limit-mm-per-prompt")
    if limit is None or re.search(r"image\W*[=:]\W*0\b", limit) or "--language-model-only" in command.words:
        return ()
    return ("image",) if "image" in limit else ()
