"""Properties that hold for every model and template: what is in the prompt, and what an output is read as.

Pure: they look at texts, and know neither the template nor the parser that made them.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from builder.proving.conversations import ParsedMessage, tool_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.proving.conversations import Conversation

_FREE = frozenset({"system", "developer"})
_NOTHING = re.compile(r"\b(?:None|null|undefined)\b")
_PRINTED_LIST = re.compile(r"""['"]type['"]:\s*['"]text['"]""")
_ESCAPED = re.compile(r"\\u[0-9a-fA-F]{4}")
_ROLES = {"user": "user", "assistant": "assistant"}


def of_prompt(conversation: Conversation, text: str, *, names_roles: bool) -> Iterator[tuple[str, str]]:
    """Each property that a prompt breaks: its name, and what was seen. ``names_roles`` for a family whose turns begin
    with the names of their roles."""
    flat = _flat(text)
    yield from _contents(conversation, flat)
    yield from _order(conversation, flat)
    yield from _calls(conversation, flat)
    yield from _tools(conversation, flat)
    for hidden in conversation.hidden:
        if flat.count(_flat(hidden)) > 1:
            yield "reasoning", f"earlier reasoning is there {flat.count(_flat(hidden))} times: {hidden!r}"
    if _PRINTED_LIST.search(text) and not _PRINTED_LIST.search(json.dumps([t.texts for t in conversation.turns])):
        yield "parts", "a content of several parts is printed as a list"
    yield from _turn_marks(conversation, text, names_roles=names_roles)


def of_prompts(conversation: Conversation, texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each property that a prompt breaks beside others; ``texts`` are the prompts by conversation."""
    text = texts[conversation.name]
    other = texts.get(conversation.same_as)
    if other is not None and other != text:
        yield "parts", f"a content of one part is not rendered like the same text:\n{side_by_side(other, text)}"
    other = texts.get(conversation.like)
    if other is not None and len(_NOTHING.findall(text)) > len(_NOTHING.findall(other)):
        yield "nothing", f"where there is no content, {_NOTHING.findall(text)[-1]} is printed"


def of_message(expected: ParsedMessage, message: ParsedMessage) -> Iterator[tuple[str, str]]:
    """Each property that a parsed output breaks."""
    if message.reasoning != expected.reasoning:
        yield "reasoning", _differs("the reasoning", expected.reasoning, message.reasoning)
    if message.content != expected.content:
        yield "content", _differs("the content", expected.content, message.content)
    if [name for name, _ in message.calls] != [name for name, _ in expected.calls]:
        yield "calls", _differs("the calls", _named(expected), _named(message))
    else:
        for (name, wanted), (_, arguments) in zip(expected.calls, message.calls, strict=True):
            if not same_json(wanted, arguments):
                yield "arguments", _differs(f"the arguments of {name}", _json(wanted), _json(arguments))


def of_streamed(whole: ParsedMessage, streamed: Sequence[ParsedMessage]) -> Iterator[tuple[str, str]]:
    """The first of several streamed readings that differs from the whole one."""
    for message in streamed:
        for check, text in of_message(whole, message):
            yield "streamed", f"in pieces it is read otherwise, {check}: {text}"
            return


def parsed(answer: Mapping[str, Any]) -> ParsedMessage:
    """A message as the front end parsed it; white space around texts is left out, as it differs between parsers."""
    calls = tuple((call["name"], _arguments(call["arguments"])) for call in answer["calls"])
    return ParsedMessage(answer["content"].strip(), answer["reasoning"].strip(), calls)


def same_json(first: Any, second: Any) -> bool:
    """True for equal JSON values: 1 and true are not, whatever Python says."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def side_by_side(before: str, now: str, longest: int = 400) -> str:
    """Two texts where they begin to differ, one below the other."""
    start = _common(before, now)
    begin = max(0, before.rfind("\n", 0, start) + 1, start - longest // 4)
    return f"  before: {_cut(before[begin:], longest)}\n  now:    {_cut(now[begin:], longest)}"


def _cut(text: str, longest: int) -> str:
    return repr(text if len(text) <= longest else f"{text[:longest]}…")


def _contents(conversation: Conversation, flat: str) -> Iterator[tuple[str, str]]:
    for turn in conversation.turns:
        for shown in filter(_flat, turn.shown):
            text = _flat(shown)
            count = flat.count(text)
            if count == 0 and turn.role == "tool" and _flat(_json(shown)[1:-1]) in flat:
                continue  # some write results as JSON
            if count == 0:
                why = "is escaped" if _ESCAPED.search(flat) and not text.isascii() else "is lost"
                yield "content", f"what {turn.role} says {why}: {text!r}"
            elif count > 1:
                yield "content", f"what {turn.role} says is there {count} times: {text!r}"


def _order(conversation: Conversation, flat: str) -> Iterator[tuple[str, str]]:
    """The order of what users, the model and tools say; instructions may stand where a template wants them."""
    at, before = -1, ""
    for turn in conversation.turns:
        for text in filter(None, map(_flat, turn.shown if turn.role not in _FREE else ())):
            place = flat.find(text)
            if 0 <= place < at:
                yield "order", f"{text!r} stands before {before!r}"
            elif place >= 0:
                at, before = place, text


def _calls(conversation: Conversation, flat: str) -> Iterator[tuple[str, str]]:
    """The calls of earlier turns: each name after the one before, with its texts beside it."""
    at = 0
    for turn in conversation.turns:
        for text in filter(None, map(_flat, turn.shown if turn.role not in _FREE else ())):
            at = max(at, flat.find(text))
        for call in turn.calls:
            before, place = at, flat.find(call.name, at)
            if place < 0:
                yield "calls", f"the call of {call.name} is lost"
                continue
            at = place + len(call.name)
            for leaf in _leaves(call.arguments):
                # Some write the arguments before the name.
                if flat.find(_flat(leaf), before) < 0:
                    why = "is escaped" if _ESCAPED.search(flat) and not leaf.isascii() else "is lost"
                    yield "arguments", f"an argument of {call.name} {why}: {leaf!r}"


def _leaves(value: Any) -> Iterator[str]:
    """The texts in arguments that JSON writes as they are."""
    if isinstance(value, str):
        if json.dumps(value, ensure_ascii=False) == f'"{value}"':
            yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)


def _tools(conversation: Conversation, flat: str) -> Iterator[tuple[str, str]]:
    for name in conversation.tools:
        schema = tool_schemas()[name]
        missing = [
            part for part in (name, schema["description"], *schema["parameters"]["properties"]) if part not in flat
        ]
        if missing:
            why = (
                "is escaped" if _ESCAPED.search(flat) and missing == [schema["description"]] else "is not in the prompt"
            )
            yield "tools", f"the tool {name} {why}, or not whole: {', '.join(map(repr, missing))}"


def _turn_marks(conversation: Conversation, text: str, *, names_roles: bool) -> Iterator[tuple[str, str]]:
    """The marks between turns: alike for alike roles, different for different ones, and at the end for the model."""
    turns = [turn for turn in conversation.turns if turn.role not in _FREE]
    if any(turn.calls or len(turn.texts) != 1 or turn.role not in _ROLES for turn in turns) or conversation.hidden:
        return
    places = [text.find(turn.texts[0].strip()) for turn in turns]
    if places != sorted(places) or min(places, default=-1) < 0:
        return  # told already
    others = [shown for turn in conversation.turns if turn.role in _FREE for shown in turn.shown]
    gaps: dict[tuple[str, str], list[str]] = {}
    placed = list(zip(turns, places, strict=True))
    for (turn, begin), (following, end) in pairwise(placed):
        gap = text[begin + len(turn.texts[0].strip()) : end]
        if not any(content in gap for content in others):
            gaps.setdefault((turn.role, following.role), []).append("".join(gap.split()))
    to_model, to_user = gaps.get(("user", "assistant"), []), gaps.get(("assistant", "user"), [])
    yield from _marks(to_model, to_user, names_roles=names_roles)
    if conversation.generation and to_model and turns[-1].role == "user":
        tail = "".join(text[places[-1] + len(turns[-1].texts[0].strip()) :].split())
        yield from _generation(to_model[0], tail, to_user)


def _marks(to_model: Sequence[str], to_user: Sequence[str], *, names_roles: bool) -> Iterator[tuple[str, str]]:
    for role, marks in (("assistant", to_model), ("user", to_user)):
        if len(set(marks)) > 1:
            yield "roles", f"turns of the {role} begin in several ways: {', '.join(map(repr, dict.fromkeys(marks)))}"
        elif names_roles and marks and role not in marks[0].lower():
            yield "roles", f"a turn of the {role} begins with {marks[0]!r}, which does not name it"
    if to_model and to_user and to_model[0] == to_user[0]:
        yield "roles", f"turns of the user and of the model both begin with {to_model[0]!r}"


def _generation(mark: str, tail: str, to_user: Sequence[str]) -> Iterator[tuple[str, str]]:
    if mark and not tail:
        yield "generation", "the prompt does not begin the turn of the model"
    elif not mark.startswith(tail) and not tail.startswith(mark):
        # After the role a model that reasons may be put into a block that its earlier turns have closed, or have not.
        of_any_role = max((_common(mark, other) for other in to_user), default=0)
        if _common(mark, tail) <= of_any_role:
            yield "generation", f"the prompt ends with {tail!r}, while turns of the model begin with {mark!r}"
    elif len(tail) < len(mark) and mark.lower().rfind("assistant") >= len(tail):
        yield "generation", f"the prompt ends with {tail!r}, and does not begin the turn of the model"


def _common(first: str, second: str) -> int:
    """The number of first characters that two texts share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flat(text: str) -> str:
    return " ".join(text.split())


def _named(message: ParsedMessage) -> str:
    return ", ".join(name for name, _ in message.calls) or "none"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _differs(what: str, wanted: str, got: str) -> str:
    return f"{what}\n  wanted: {_cut(wanted, 400)}\n  read:   {_cut(got, 400)}"
