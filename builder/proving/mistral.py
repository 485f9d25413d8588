"""Mistral's own tokenizers, which render without a template. vLLM refuses every option of one with them, and a
conversation that ends with the model; what it parses without a server it decodes token by token, where a character may
be several (vLLM 0.32, vllm/tokenizers/mistral.py, convert_tokens_to_string). So prompts alone are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.definitions.recipes import arguments
from builder.proving.conversations import Conversation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.proving.conversations import Question
    from builder.proving.served_options import ServedOptions

_OPTIONS = "chat_template_kwargs"


def renders(options: ServedOptions) -> bool:
    """True where a recipe has vLLM take them: https://docs.vllm.ai/en/stable/configuration/engine_args,
    ``--tokenizer-mode mistral``."""
    return arguments.option(options.argv, "--tokenizer-mode") == "mistral"


def prompts(questions: Sequence[Question]) -> tuple[Question, ...]:
    """The questions for prompts, without options of a template; those that are about such options are left out."""
    return tuple(
        replace(question, body={**question.body, "request": _without_options(question.body["request"])})
        for question in questions
        if question.kind == "prompt" and isinstance(question.subject, Conversation) and not question.subject.options
    )


def _without_options(request: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key != _OPTIONS}
