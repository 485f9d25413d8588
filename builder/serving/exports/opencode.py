"""Export of a served model as a provider of OpenCode: https://opencode.ai/docs/providers/#custom-provider."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.definitions.recipes import arguments

if TYPE_CHECKING:
    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.recipe import Recipe

# OpenCode takes a missing limit for 0, and then requests no output at all:
# https://github.com/anomalyco/opencode/issues/22587
DEFAULT_CONTEXT = 32_768
LONGEST_OUTPUT = 32_768


def render(recipe: Recipe, command: ServeCommand, address: str) -> str:
    """Returns the provider block; ``address`` is the server's host for OpenCode: ``127.0.0.1`` or another machine."""
    host = f"[{address}]" if ":" in address else address
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": f"vLLM on {address}",
        "options": {"baseURL": f"http://{host}:{command.port}/v1"},
        "models": {name: _model(recipe, command) for name in command.served},
    }
    document = {"$schema": "https://opencode.ai/config.json", "provider": {"vllm": provider}}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _model(recipe: Recipe, command: ServeCommand) -> dict[str, Any]:
    max_model_len = arguments.option(command.words, "--max-model-len") or ""
    context = int(max_model_len) if max_model_len.isascii() and max_model_len.isdecimal() else DEFAULT_CONTEXT
    return {
        "name": recipe.name,
        "tool_call": "--enable-auto-tool-choice" in command.words,
        "reasoning": arguments.option(command.words, "--reasoning-parser") is not None,
        "limit": {"context": context, "output": min(context, LONGEST_OUTPUT)},
    }
