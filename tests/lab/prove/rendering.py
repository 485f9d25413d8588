"""Prompts and answers for tests without a front end: a small template, rendered here."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from builder.lab.prove import conversations
from builder.lab.prove.conversations import Conversation, Question, Trip
from builder.lab.prove.properties import Style

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
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    return environment.from_string(source)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def style(source: str) -> Style:
    """The manner of a template that is served with the parsers hermes and qwen3."""
    return Style(names_roles=True, reasons=True, call="<tool_call>", source=source)


def prompts(source: str) -> dict[str, str]:
    """The prompt of every conversation."""
    return {each.name: render(source, each.request()) for each in conversations.conversations()}


def conversation(name: str) -> Conversation:
    return next(each for each in conversations.conversations() if each.name == name)


def prompt(source: str, request: dict[str, Any]) -> dict[str, Any]:
    """What a front end answers to a question for a prompt; `driver.note_template_errors` adds the kind of an error."""
    try:
        text = render(source, request)
    except Exception as error:  # noqa: BLE001  # whatever the template does
        return {"refused": str(error), "error": type(error).__name__, "line": 0}
    return {"text": text, "ids": list(text.encode())}


def answers(questions: tuple[Question, ...], source: str) -> dict[str, Any]:
    """What a front end without fault would answer."""
    result: dict[str, Any] = {}
    for question in questions:
        if isinstance(question.subject, Trip):
            result[question.name] = turn(question.subject)
        else:
            result[question.name] = prompt(source, question.body["request"])
    return result


def turn(trip: Trip) -> dict[str, Any]:
    """A turn that loses nothing on its way."""
    expected = trip.expected
    calls = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in expected.calls]
    message = {"content": expected.content, "reasoning": expected.reasoning, "calls": calls}
    written = [json.dumps([name, arguments], ensure_ascii=False) for name, arguments in expected.calls]
    text = "\n".join([expected.reasoning, expected.content, *written])
    return {"text": text, "whole": message, "streamed": {"chunks": message}}
