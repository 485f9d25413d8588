"""The answer to a message with tools, whole or put together from a stream, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Fault = Literal["missing", "doubled", "malformed", "raw", "wrong"]
# The marks with which families of models write a call: in a text they are calls that the parser did not see.
_MARKS = (
    "<tool_call>", "</tool_call>", "<function=", "<parameter=", "<arg_key>", "<arg_value>", "[TOOL_CALLS]",
    "<|python_tag|>", "<|tool_call", "<tool_call|>", "<|call|>", "<|constrain|>", "<｜tool▁call", "<｜DSML｜",  # noqa: RUF001
)  # fmt: skip


@dataclass(frozen=True)
class ToolCall:
    """A call as it was answered: the name, and the text of its arguments."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ToolAnswer:
    """An answer: its text, and the calls in it."""

    content: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True)
class AnswerFault:
    """A fault of an answer, with the text that shows it."""

    kind: Fault
    text: str


class NoMessageError(Exception):
    """An answer that does not have the form of one."""


def of_message(answer: Mapping[str, Any]) -> ToolAnswer:
    """The answer in a chat completion. Raises NoMessageError."""
    try:
        message = answer["choices"][0]["message"]
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        return ToolAnswer(str(message.get("content") or ""), calls)
    except (LookupError, TypeError, AttributeError) as error:
        raise NoMessageError(f"the answer has no message: {error}") from None


def of_stream(events: Iterable[Mapping[str, Any]]) -> ToolAnswer:
    """The answer in the events of a stream, put together as clients do: by the index of each call. Raises
    NoMessageError."""
    content: list[str] = []
    parts: dict[int, dict[str, str]] = {}
    try:
        for event in events:
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                content.append(str(delta.get("content") or ""))
                for call in delta.get("tool_calls") or ():
                    part = parts.setdefault(int(call["index"]), {"id": "", "name": "", "arguments": ""})
                    function = call.get("function") or {}
                    part["id"] = str(call.get("id") or part["id"])
                    part["name"] += str(function.get("name") or "")
                    part["arguments"] += str(function.get("arguments") or "")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NoMessageError(f"an event of the stream has no form: {error}") from None
    return ToolAnswer("".join(content), tuple(ToolCall(**part) for _, part in sorted(parts.items())))


def fault(answer: ToolAnswer, tool: str, arguments: Mapping[str, Any]) -> AnswerFault | None:
    """The fault of an answer that should call ``tool`` once with these arguments; None if there is none."""
    if mark := _mark(answer.content):
        return AnswerFault("raw", f"the text has `{mark}`: {_short(answer.content)}")
    if not answer.calls:
        return AnswerFault("missing", f"no call of {tool}, but: {_short(answer.content) or 'nothing'}")
    if len(answer.calls) > 1:
        names = ", ".join(call.name for call in answer.calls)
        return AnswerFault("doubled", f"{len(answer.calls)} calls in place of one: {_short(names)}")
    return _fault_of_call(answer.calls[0], tool, arguments)


def fault_of_end(answer: ToolAnswer) -> AnswerFault | None:
    """The fault of the answer after the last step, which should call nothing more."""
    if mark := _mark(answer.content):
        return AnswerFault("raw", f"the text has `{mark}`: {_short(answer.content)}")
    if answer.calls:
        return AnswerFault("doubled", f"a call of {_short(answer.calls[0].name)} after the job was done")
    return None


def _fault_of_call(call: ToolCall, tool: str, arguments: Mapping[str, Any]) -> AnswerFault | None:
    try:
        given = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return AnswerFault("malformed", f"the arguments are no JSON: {_short(call.arguments)}")
    if not isinstance(given, dict):
        return AnswerFault("malformed", f"the arguments are no object: {_short(call.arguments)}")
    if mark := _mark(call.name + call.arguments):
        return AnswerFault("raw", f"the call has `{mark}`: {_short(call.name)} {_short(call.arguments)}")
    if call.name != tool:
        return AnswerFault("wrong", f"a call of {_short(call.name)} in place of {tool}")
    if given != arguments or _kinds(given) != _kinds(arguments):
        expected = json.dumps(arguments, ensure_ascii=False)
        return AnswerFault("wrong", f"arguments {_short(call.arguments)} in place of {expected}")
    return None


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    return ToolCall(str(call.get("id") or ""), str(function["name"]), str(function.get("arguments") or ""))


def _kinds(arguments: Mapping[str, Any]) -> Sequence[tuple[str, type]]:
    """The types of the values: Python holds 1 and true for equal."""
    return sorted(((name, type(value)) for name, value in arguments.items()), key=lambda pair: pair[0])


def _mark(text: str) -> str:
    return next((mark for mark in _MARKS if mark in text), "")


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"
