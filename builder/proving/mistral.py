"""Mistral's own tokenizers, which render without a template: vLLM refuses every option of one with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.proving.conversations import Conversation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.proving.conversations import Question
    from builder.proving.served_options import ServedOptions

_OPTIONS = "chat_template_kwargs"


def renders(options: ServedOptions) -> bool:
    """True where a recipe has vLLM take them: https://docs.vllm.ai/en/stable/configuration/engine_args,
    ``--tokenizer-mode mistral``."""
    following = dict(zip(options.argv, options.argv[1:], strict=False))
    return following.get("--tokenizer-mode") == "mistral"


def without_options(questions: Sequence[Question]) -> tuple[Question, ...]:
    """The questions without options of a template; those that are about such options are left out."""
    return tuple(
        replace(question, body=_without(question.body))
        for question in questions
        if not (isinstance(question.subject, Conversation) and question.subject.options)
    )


def _without(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a question, whose requests are among its values."""
    return {
        name: {key: each for key, each in value.items() if key != _OPTIONS} if isinstance(value, dict) else value
        for name, value in body.items()
    }
