"""The conversations and recorded outputs that an image is proven with: the files of ``conversations/``, as data."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from builder.base import yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


Family = Literal["hermes", "xml", "glm", "gpt-oss", "plain", ""]

# https://docs.vllm.ai/en/stable/features/tool_calling.html
_CALLS: dict[str, Family] = {
    **dict.fromkeys(("hermes", "qwen3_json"), "hermes"),
    **dict.fromkeys(("qwen3_coder", "qwen3_xml"), "xml"),
    **dict.fromkeys(("glm45", "glm47"), "glm"),
    "openai": "gpt-oss",
}
# Reasoning that stands between <think> and </think>.
_THINKING = frozenset({"qwen3", "deepseek_r1", "glm45", "glm47"})

# By these a call begins; the prompt of a model that is to call tools says so.
_CALL_MARKS = {"hermes": "<tool_call>", "xml": "<function=", "glm": "<tool_call>"}

# Those that take text without any mark for an answer. Others may take all of it for reasoning, as deepseek_r1 does: its
# models begin within a block that the prompt has opened.
_WITHOUT_MARKS = frozenset({"", "qwen3", "glm45", "glm47", "openai_gptoss"})


def of_calls(tool_parser: str) -> Family:
    """The family whose calls a parser reads; empty for an unknown parser."""
    return _CALLS.get(tool_parser, "") if tool_parser else "plain"


def call_mark(tool_parser: str) -> str:
    return _CALL_MARKS.get(of_calls(tool_parser), "")


def forgets_reasoning(reasoning_parser: str) -> bool:
    """True where the models of a parser see the reasoning of the turn under way again, and none of earlier turns."""
    return reasoning_parser in _THINKING - {"deepseek_r1"}


Json = dict[str, Any]

FOLDER = Path(__file__).with_name("conversations")
_OUTPUTS = ("hermes", "xml", "glm", "gpt-oss", "plain")
# As long as Mistral's template wants it.
_CALL_ID = "call{:05}"
_OFFERED = ("weather",)
_LONG = re.compile(r"⟦(?P<size>[0-9]+) (?P<word>[a-z]+)⟧")


class Call(NamedTuple):
    """A call of a tool; ``arguments`` as the model means them."""

    name: str
    arguments: Json


@dataclass(frozen=True)
class ParsedMessage:
    """A message of the model, taken apart. Arguments that are no JSON stay text."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Turn:
    """A message of a conversation. ``shown`` is what a prompt has to hold of the content."""

    role: str
    texts: tuple[str, ...]
    shown: tuple[str, ...]
    calls: tuple[Call, ...]
    message: Json


@dataclass(frozen=True)
class Conversation:
    """A conversation that is rendered; see conversations/prompts.yaml."""

    name: str
    turns: tuple[Turn, ...]
    is_parsed: bool
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
class Output:
    """A recorded output of a ``family``, parsed in pieces ``streams`` times; ``expected`` is None where any reading is
    right."""

    name: str
    family: str
    text: str
    reasoning: bool
    streams: int
    expected: ParsedMessage | None


Kind = Literal["prompt", "output", "turn"]


@dataclass(frozen=True)
class Question:
    """A conversation to render, an output to parse, or the turn ``turn`` of a conversation to render and parse.
    ``body`` is what `driver` takes. An ``is_open`` one may be answered in any way, but as by the number before."""

    name: str
    kind: Kind
    subject: Conversation | Output
    turn: int
    body: Json
    is_open: bool = False

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.body, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def expected(self) -> ParsedMessage | None:
        """The message to read; None where any reading is right, and for a prompt."""
        if self.is_open:
            return None
        if isinstance(self.subject, Output):
            return self.subject.expected
        calls = self.subject.turns[self.turn].calls if self.kind == "turn" else ()
        return ParsedMessage("".join(self.subject.turns[self.turn].texts), calls=calls) if calls else None


def questions(tool_parser: str, reasoning_parser: str) -> tuple[Question, ...]:
    """The questions for a model with these parsers; without a tool parser no tools are offered."""
    family = of_calls(tool_parser)
    is_tagged = reasoning_parser in _THINKING
    chosen = [each for each in conversations() if (tool_parser or not each.tools) and (is_tagged or not each.outside)]
    result = [Question(each.name, "prompt", each, 0, {"request": each.request()}) for each in chosen]
    result += [question for each in chosen if tool_parser for question in _turns(each)]
    with_reasoning = reasoning_parser in {"", "openai_gptoss"} if family == "gpt-oss" else is_tagged
    for output in outputs():
        if output.family == (family or "plain") and (with_reasoning or not output.reasoning):
            result.append(_output_question(output, has_tools=bool(tool_parser)))
    is_open = reasoning_parser not in _WITHOUT_MARKS
    return tuple(replace(each, is_open=is_open and each.kind != "prompt") for each in result)


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
        parts |= {"turns": tuple(_read_turns(parts.pop("messages"))), "is_parsed": content.get("turns", True)}
        made.append(Conversation(name, **parts))
    return tuple(made)


@functools.cache
def outputs() -> tuple[Output, ...]:
    made = []
    for family, (name, content) in ((each, output) for each in _OUTPUTS for output in _read(each).items()):
        expected = None
        if (expect := content.get("expect")) is not None:
            calls = tuple(_calls(expect))
            expected = ParsedMessage(expect.get("content", ""), expect.get("reasoning", ""), calls)
        rest = content.get("reasoning", False), content.get("streams", 3)
        made.append(Output(f"{family}/{name}", family, content["text"], *rest, expected))
    return tuple(made)


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
        """A text of about this size without a part that is there twice: whatever is cut out of it is missed."""
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
            # The second is its name in releases before 0.12.
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


def _output_question(output: Output, *, has_tools: bool) -> Question:
    options = {} if output.reasoning else {"enable_thinking": False}
    called = dict.fromkeys(name for name, _ in output.expected.calls) if output.expected else {}
    tools = (tuple(called) or _OFFERED) if has_tools else ()
    request = request_of([{"role": "user", "content": "Go on"}], tools, options, generation=True)
    body = {"request": request, "text": output.text, "streams": output.streams}
    return Question(output.name, "output", output, 0, body)


def _turns(conversation: Conversation) -> Iterator[Question]:
    """The turns with calls that a template writes: the parser has to read them back."""
    for at, turn in enumerate(conversation.turns):
        # A template may drop the rest of such a turn, and the question is about its calls.
        is_about_calls = conversation.is_parsed and not conversation.hidden and not conversation.same_as
        if turn.role != "assistant" or not turn.calls or not is_about_calls:
            continue
        options = {**conversation.options, "enable_thinking": False}
        before = [each.message for each in conversation.turns[:at]]
        other = [*before, {"role": "assistant", "content": "Very well."}]
        body = {
            "before": request_of(before, conversation.tools, options, generation=True),
            "after": request_of([*before, turn.message], conversation.tools, options, generation=False),
            "other": request_of(other, conversation.tools, options, generation=False),
            "streams": 1,
        }
        yield Question(f"{conversation.name}/turn-{at + 1}", "turn", conversation, at, body)
