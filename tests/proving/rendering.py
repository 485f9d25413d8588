"""Prompts and answers for tests without a front end: a small template, rendered here."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template

from builder.proving import conversations
from builder.proving.conversations import Conversation, Question

HERMES = Path(__file__).with_name("hermes.jinja")


def template() -> str:
    return HERMES.read_text(encoding="utf-8")


def render(source: str, request: dict[str, Any]) -> str:
    """The prompt of a request, with the settings by which transformers renders chat templates."""
    messages = json.loads(json.dumps(request["messages"]))
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    options = request.get("chat_template_kwargs", {})
    generation = request["add_generation_prompt"]
    return _compiled(source).render(
        messages=messages, tools=request.get("tools"), add_generation_prompt=generation, **options
    )


@functools.cache
def _compiled(source: str) -> Template:
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(source)


def _refuse(message: str) -> None:
    raise ValueError(message)


def prompts(source: str) -> dict[str, str]:
    """The prompt of every conversation."""
    return {each.name: render(source, each.request()) for each in conversations.conversations()}


def conversation(name: str) -> Conversation:
    return next(each for each in conversations.conversations() if each.name == name)


def answers(questions: tuple[Question, ...], source: str) -> dict[str, Any]:
    """What a front end without fault would answer."""
    result: dict[str, Any] = {}
    for question in questions:
        if question.kind == "prompt":
            text = render(source, question.body["request"])
            result[question.name] = {"text": text, "ids": list(text.encode())}
        else:
            expected = question.expected
            message = {
                "content": expected.content if expected else "",
                "reasoning": expected.reasoning if expected else "",
                "calls": [
                    {"name": name, "arguments": json.dumps(arguments)}
                    for name, arguments in (expected.calls if expected else ())
                ],
            }
            result[question.name] = {"whole": message, "streamed": [message, message]}
    return result
