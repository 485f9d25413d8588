"""The conversations and turns of a proof, read from the files in ``conversations/``."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from builder.base import yaml_file
from builder.base.values import dataclass, field

# The marks at the beginning of calls, for the known families of models. The prompt of a model that calls tools contains
# the mark.
# https://docs.vllm.ai/en/stable/features/tool_calling.html
_CALL_MARKS = {
    **dict.fromkeys(("hermes", "qwen3_json", "glm45", "glm47"), "<tool_call>"),
    **dict.fromkeys(("qwen3_coder", "qwen3_xml"), "<function="),
    "openai": "",
}
# The reasoning is between <think> and </think>.
_THINKING = frozenset({"qwen3", "deepseek_r1", "glm45", "glm47"})

# These parsers read an output without marks as reasoning: their models always begin with reasoning.
_ALWAYS_THINKS = frozenset({"deepseek_r1"})

# These parsers read calls only if the output contains nothing else, or only one call at a time: their models write no
# other outputs.
_CALLS_ALONE = frozenset({"granite-20b-fc", "llama3_json", "llama4_json", "llama4_pythonic", "pythonic", "xlam"})
_ONE_CALL = frozenset({"internlm"})


def is_known(tool_parser: str) -> bool:
    """True for the parser of a family that begins each turn with the name of its role."""
    return tool_parser in _CALL_MARKS


def call_mark(tool_parser: str) -> str:
    return _CALL_MARKS.get(tool_parser, "")


def forgets_reasoning(reasoning_parser: str) -> bool:
    """True if the models of a parser get the reasoning of the current turn again, but no reasoning of earlier turns."""
    return reasoning_parser in _THINKING - {"deepseek_r1"}


Json = dict[str, Any]

FOLDER = Path(__file__).with_name("conversations")
# Nine characters: Mistral's template requires this length.
_CALL_ID = "call{:05}"
_OFFERED = ("weather",)
# What `driver` does with a turn.
_DRIVEN = ("tokens", "again", "begun", "quoted", "cut", "ends", "rewrite", "spelled")
_LONG = re.compile(r"⟦(?P<size>[0-9]+) (?P<word>[a-z]+)⟧")


class Call(NamedTuple):
    """A tool call; ``arguments`` are the values that the model intends."""

    name: str
    arguments: Json


@dataclass(frozen=True)
class ParsedMessage:
    """A parsed message of the model. Arguments that are not valid JSON stay text."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Turn:
    """A message of a conversation. ``shown`` is the part of the content that a prompt must contain."""

    role: str
    texts: tuple[str, ...]
    shown: tuple[str, ...]
    calls: tuple[Call, ...]
    message: Json


@dataclass(frozen=True)
class Conversation:
    """A conversation to render; see conversations/prompts.yaml."""

    name: str
    turns: tuple[Turn, ...]
    tools: tuple[str, ...] = ()
    options: Json = field(default_factory=dict)
    generation: bool = True
    may_refuse: bool = False
    same_as: str = ""
    like: str = ""
    hidden: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    unlike: Mapping[str, str] = field(default_factory=dict)
    without: str = ""
    under_way: tuple[str, ...] = ()
    past: tuple[str, ...] = ()

    def request(self) -> Json:
        messages = [turn.message for turn in self.turns]
        return request_of(messages, self.tools, self.options, generation=self.generation)


@dataclass(frozen=True)
class Trip:
    """A turn of the model to write with the template and read back with the parsers; see conversations/trips.yaml."""

    name: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    plain: bool = False
    hard: bool = False
    tokens: bool = False
    cut: float | list[list[float]] = 0.0
    rewrite: Sequence[str] = ()
    spelled: bool = False
    again: bool = False
    begun: float = 0.0
    quoted: float = 0.0
    ends: bool = False
    off: bool = False
    request: Json = field(default_factory=dict)
    later: bool = False

    @property
    def expected(self) -> ParsedMessage:
        return ParsedMessage(self.content.strip(), self.reasoning.strip(), self.calls)


@dataclass(frozen=True)
class Question:
    """A conversation to render, or a turn to render and read back. ``body`` is the input of `driver`."""

    name: str
    subject: Conversation | Trip
    body: Json

    @property
    def kind(self) -> Literal["prompt", "turn"]:
        return "prompt" if isinstance(self.subject, Conversation) else "turn"

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.body, sort_keys=True).encode()).hexdigest()[:12]


def questions(tool_parser: str, reasoning_parser: str) -> tuple[Question, ...]:
    """The questions for a model with these parsers. Without a tool parser, the questions offer no tools."""
    is_tagged = reasoning_parser in _THINKING
    chosen = [each for each in conversations() if (tool_parser or not each.tools) and (is_tagged or not each.outside)]
    result = [Question(each.name, each, {"request": each.request()}) for each in chosen]
    for trip in trips():
        is_asked = (tool_parser or not trip.calls) and (reasoning_parser or not trip.reasoning)
        is_never_written = trip.calls and trip.content and tool_parser in _CALLS_ALONE
        is_never_written = is_never_written or (len(trip.calls) > 1 and tool_parser in _ONE_CALL)
        if is_asked and not is_never_written:
            result += [_trip_question(trip, tool_parser, reasoning_parser)]
    return tuple(result)


def digest_of_set() -> str:
    digest = hashlib.sha256()
    for path in sorted(FOLDER.glob("*.yaml")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"sha256:{digest.hexdigest()}"


@functools.cache
def conversations() -> tuple[Conversation, ...]:
    made = []
    for name, content in _read("prompts").items():
        parts: Json = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
        parts["turns"] = tuple(_read_turns(parts.pop("messages")))
        made.append(Conversation(name, **parts))
    return tuple(made)


@functools.cache
def trips() -> tuple[Trip, ...]:
    return tuple(Trip(name, **{**content, "calls": tuple(_calls(content))}) for name, content in _read("trips").items())


def request_of(messages: list[Json], tools: tuple[str, ...], options: Json, *, generation: bool) -> Json:
    body: Json = {"messages": messages, "add_generation_prompt": generation}
    if tools:
        body["tools"] = [{"type": "function", "function": {"name": name, **tool_schemas()[name]}} for name in tools]
        body["tool_choice"] = "auto"
    if options:
        body["chat_template_kwargs"] = options
    return body


@functools.cache
def tool_schemas() -> Mapping[str, Json]:
    return _read("tools")


def _read(name: str) -> dict[str, Json]:
    def long(match: re.Match[str]) -> str:
        """A text of about this size without repeated parts, so that any missing part is noticed."""
        size, word = int(match["size"]), match["word"]
        return " ".join(f"{word} {number:05}" for number in range(1, size // len(f"{word} 00000 ") + 1))

    path = FOLDER / f"{name}.yaml"
    content: dict[str, Json] = yaml_file.load(_LONG.sub(long, path.read_text(encoding="utf-8")), path.name)
    return content


def _read_turns(messages: Iterable[Json]) -> Iterator[Turn]:
    waiting: list[str] = []
    count = 0
    for each in _exchanges(messages):
        content = each["content"]
        message: Json = {"role": each["role"], "content": content}
        calls = tuple(_calls(each))
        if each["role"] == "tool":
            message["tool_call_id"] = waiting.pop(0)
        if calls:
            waiting = [_CALL_ID.format(count + at) for at in range(1, len(calls) + 1)]
            count += len(calls)
            functions = [{"name": name, "arguments": json.dumps(given, ensure_ascii=False)} for name, given in calls]
            message["tool_calls"] = [
                {"id": ident, "type": "function", "function": function}
                for ident, function in zip(waiting, functions, strict=True)
            ]
        if "reasoning" in each:
            # Releases before 0.12 call it `reasoning_content`.
            message |= {"reasoning": each["reasoning"], "reasoning_content": each["reasoning"]}
        texts = (content,) if isinstance(content, str) else tuple(part["text"] for part in content or ())
        shown = (each["shown"],) if "shown" in each else texts
        yield Turn(each["role"], texts, shown, calls, message)


def _exchanges(messages: Iterable[Json]) -> Iterator[Json]:
    for each in messages:
        for number in range(1, each.get("exchanges", 0) + 1):
            yield {"role": "user", "content": f"What is item {number:03} of the list"}
            yield {"role": "assistant", "content": f"Shelf {number:03} has it"}
        if "role" in each:
            yield each


def _calls(content: Json) -> Iterator[Call]:
    written = content.get("calls") or ()
    for group in [written] if isinstance(written, dict) else written:
        yield from map(Call._make, group.items())


def _earlier(tool_parser: str, reasoning_parser: str, tools: Sequence[str]) -> list[Json]:
    """An exchange before a turn; with reasoning and a call if the parsers can read these."""
    thought = {"reasoning": "The sky has to be asked."} if reasoning_parser else {}
    user = {"role": "user", "content": "And the sky"}
    if not tool_parser or "weather" not in tools:
        return [user, {"role": "assistant", "content": "It is clear", **thought}]
    called = {"role": "assistant", "content": "", "calls": {"weather": {"city": "Chur"}}, **thought}
    return [user, called, {"role": "tool", "content": "Clear"}, {"role": "assistant", "content": "It is clear"}]


def _trip_question(trip: Trip, tool_parser: str, reasoning_parser: str) -> Question:
    called = tuple(dict.fromkeys(call.name for call in trip.calls))
    tools = called or _OFFERED if tool_parser and not trip.plain else ()
    earlier = _earlier(tool_parser, reasoning_parser, tools) if trip.later else []
    is_on = bool(trip.reasoning) and not trip.off
    options: Json = dict.fromkeys(("enable_thinking", "thinking"), is_on)
    options |= {"thinking_mode": "enabled", "reasoning_effort": "high"} if is_on else {}
    options = {} if trip.plain else options
    # The end of the turn is found by comparison with another turn. The other turn therefore ends like no other text.
    turn, other = (
        [*_read_turns([*earlier, {"role": "user", "content": "Go on"}, {"role": "assistant", "calls": [], **each}])]
        for each in (
            {"content": trip.content, "calls": [{name: given} for name, given in trip.calls]}
            | ({"reasoning": trip.reasoning} if trip.reasoning else {}),
            {"content": "Noted ¤"},
        )
    )
    *requests, reply = (each.message for each in turn)
    if tool_parser.startswith("kimi"):  # Kimi's models write the name of the tool into the id of the call
        for at, call in enumerate(reply.get("tool_calls", ())):
            call["id"] = f"functions.{call['function']['name']}:{at}"
    body: Json = {
        "before": request_of(requests, tools, options, generation=True) | trip.request,
        "after": request_of([*requests, reply], tools, options, generation=False),
        "other": request_of([*requests, other[-1].message], tools, options, generation=False),
    }
    more = {
        "reasoning": trip.reasoning,
        "thinks": "<think>" if reasoning_parser in _ALWAYS_THINKS else "",
        **{key: getattr(trip, key) for key in _DRIVEN},
    }
    body |= {key: value for key, value in more.items() if value}
    return Question(f"turn/{trip.name}", trip, body)
