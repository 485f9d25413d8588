"""Properties of the prompts of every model and template: the contents of a prompt, and the marks around them.

This module reads only texts, and knows no specific template or parser.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from builder.base.values import dataclass
from builder.base.words import counted
from builder.lab.prove.conversations import Conversation, tool_schemas

Broken: TypeAlias = Iterator[tuple[str, str]]
"""Broken properties: the name of each, and a description."""

REFUSED = "refused: "
"""The beginning of the text that replaces a prompt or an answer if the template or the parser refused."""


@dataclass(frozen=True)
class Style:
    """The known style of a model's template. ``names_roles``: each turn begins with the name of its role. ``reasons``:
    the model reasons between <think> and </think>. ``call`` is the mark at the beginning of calls, and ``source`` the
    text of the template; both are empty if unknown. ``always_begins``: each prompt ends with the beginning of the
    model's turn, even if not requested. vLLM's own code for GPT-OSS's prompts does this."""

    names_roles: bool = False
    reasons: bool = False
    call: str = ""
    begins: str = ""
    source: str = ""
    always_begins: bool = False


_SHOWN = 120
_FREE = frozenset({"system", "developer"})
_NOTHING = re.compile(r"\b(?:None|null|undefined)\b|\[\]")  # vLLM passes null content to a template as an empty list
_PRINTED_LIST = re.compile(r"""['"]type['"]:\s*['"]text['"]""")
_ESCAPED = re.compile(r"\\u[0-9a-fA-F]{4}")
_ROLES = {"user": "user", "assistant": "assistant"}
# The mark at the beginning of a turn, the text after it, and the marks at the end, as the makers of the trained models
# write them.
_TURNS = (
    ("<|im_start|>", re.compile(r"[\w.-]+( name=\S+)?\n"), ("<|im_end|>",)),
    ("<|start_header_id|>", re.compile(r"[\w.-]+<\|end_header_id\|>\n\n"), ("<|eot_id|>", "<|eom_id|>")),
    ("<start_of_turn>", re.compile(r"[\w.-]+[\n<]"), ("<end_of_turn>",)),
)
_MARK = r"<[^<>\s]{1,40}>|\[[A-Z_]{1,20}\]"
_TWICE = re.compile(rf"({_MARK})\s*\1")
_LAST_MARK = re.compile(rf"({_MARK})\Z")
_BEGIN = re.compile(rf"\s*(?:{_MARK})*\s*")
# Blocks in turns, and blocks that instructions contain, too.
_BLOCKS = ("tool_call", "tool_response", "tool_result", "arg_key", "arg_value")
_BLOCKS_OF_TOOLS = ("parameters", "parameter", "function")
_SYSTEM = re.compile(r"<[^<>\s]*>?system", re.IGNORECASE)
_ROLE_MARK = re.compile(r"<[|\uff5c]|<\w+_of_\w+>")
# The last mark at the beginning of a turn, with the name of the role.
_LAST_ROLE = re.compile(r"(?s).*<[|\uff5c](?:im_start\|>|start_header_id\|>)?(\w+)")
_ENTITY = re.compile(r"&(?:#34|#39|quot|lt|gt|amp);")
_PYTHON = re.compile(r"""{'[a-z_]+':|\['[a-z_]+'[],]""")
# A variable of the template, not a key of a message or a word in a text.
_SWITCH = re.compile(r"{[%{][^%}]*\b(?:el)?if\b[^%}]*(?<![\w.'\"])(?:enable_)?thinking(?![\w'\"])")
_REASONING = re.compile(r"\breasoning(?:_content)?\b")
_ALIKE = {
    "generation": "the prompt is the same whether or not the model is to continue",
    "developer": "a developer message is written like a user or model message",
    "result": "a tool result is written like a user message",
    "types": "the types of a tool's parameters are not in the prompt",
    "required": "the required parameters of a tool are not in the prompt",
    "thinking": "the prompt is the same with thinking on and off, although the template has a switch for it",
}


def of_prompt(conversation: Conversation, text: str, style: Style) -> Broken:
    """Yields each property that a prompt breaks."""
    flat, question = flatten(text), _begin_of_turns(conversation, text)
    yield from _contents(conversation, text, flat)
    yield from _turns(conversation, text, style)
    yield from _blocks(conversation, text, style)
    yield from _encoded(conversation, text, style)
    yield from _role_marks(conversation, text, style)
    yield from _reasoning(conversation, flat, style)
    if conversation.tools and style.call and style.call not in text[:question]:
        yield "format", f"the prompt does not say how a tool is called: no {style.call} before the first question"
    yield from _order(conversation, flat)
    yield from _calls(conversation, flat)
    yield from _tools(conversation, flat, text[:question])
    yield from _schemas(conversation, text)
    yield from _arguments_as_they_are(conversation, text)
    for hidden in conversation.hidden:
        if (count := flat.count(flatten(hidden))) > 1:
            yield "reasoning", f"earlier reasoning appears {count} times: {hidden!r}"
    for call in filter(flat.count, conversation.outside):
        before = flat.partition(call)[0]
        if before.rfind("<think>") > before.rfind("</think>"):
            yield "reasoning", f"the call with {call!r} stands inside a <think> that is still open"
    if _PRINTED_LIST.search(text) and not _PRINTED_LIST.search(json.dumps([t.texts for t in conversation.turns])):
        yield "parts", "content with several parts is printed as a list"
    yield from _turn_marks(conversation, text, names_roles=style.names_roles)


def of_prompts(conversation: Conversation, texts: Mapping[str, str], style: Style) -> Broken:
    """Yields each property that a prompt breaks compared with others; ``texts`` are the prompts by conversation."""
    for name, check in conversation.unlike.items():
        is_alike = check != "thinking" and texts.get(name) == texts[conversation.name]
        if is_alike and (check != "generation" or _begins_turns_if_asked(texts, style)):
            yield check, _ALIKE[check]
    if not style.always_begins:
        yield from _ends(conversation, texts)
    yield from _thinking(conversation, texts, style)
    yield from _begins_turn_after_result(conversation, texts, style)
    yield from _outer_space(conversation, texts)
    yield from _empty_result(conversation, texts)
    text = texts[conversation.name]
    other = texts.get(conversation.same_as)
    if other is not None and other != text:
        yield "parts", f"content with one part is not rendered like the same text:\n{side_by_side(other, text)}"
    other = texts.get(conversation.like)
    if other is not None and len(_NOTHING.findall(text)) > len(_NOTHING.findall(other)):
        yield "nothing", f"for empty content, {_NOTHING.findall(text)[-1]} is printed"


def _contents(conversation: Conversation, text: str, flat: str) -> Broken:
    """Each content appears once, with its inner white space. Many templates strip the white space around it."""
    for role, shown in _said(conversation):
        words, exact = flatten(shown), shown.strip()
        count = flat.count(words)
        if count == 0 and role == "tool" and flatten(_json(shown)[1:-1]) in flat:
            continue  # some templates write results as JSON
        if count == 0:
            yield "content", f"the {role} text {_lost(words, flat)}: {words!r}"
        elif count > 1:
            yield "content", f"the {role} text appears {count} times: {words!r}"
        if count and exact not in text and _json(exact)[1:-1] not in text:
            yield "white space", f"the white space in the {role} text has changed: {cut(exact, _SHOWN)}"


def _said(conversation: Conversation) -> Iterator[tuple[str, str]]:
    """The contents of a conversation that a prompt must contain, each with its role."""
    return ((turn.role, shown) for turn in conversation.turns for shown in turn.shown if flatten(shown))


def _turns(conversation: Conversation, text: str, style: Style) -> Broken:
    """The marks at the beginning and the end of turns."""
    rest = _without_contents(conversation, text)
    if not text.startswith(style.begins):
        yield "delimiters", f"the prompt does not begin with {style.begins}"
    if twice := _TWICE.match(text):
        yield "delimiters", f"the prompt begins with {twice[1]} twice"
    for begin, header, ends in _TURNS:
        first, *turns = rest.split(begin)
        if turns and not _BEGIN.fullmatch(first):
            yield "delimiters", f"the prompt does not begin with a turn: {cut(first, _SHOWN)}"
        for number, turn in enumerate(turns, start=1):
            count = sum(turn.count(end) for end in ends)
            if not header.match(turn):
                yield "delimiters", f"{begin} is not followed by a role, but by {cut(turn, 40)}"
            if count != 1 and (number < len(turns) or count):
                yield "delimiters", f"a turn contains {ends[0]} {counted(count, 'time')}: {cut(begin + turn, _SHOWN)}"
        # Some templates write turns of the system and of tools differently.
        of_dialogue = [turn for turn in turns[:-1] if turn.startswith(tuple(_ROLES)) and "<tool_" not in turn]
        between = {turn[max(map(turn.rfind, ends)) :] for turn in of_dialogue}
        if len({each.partition(">")[2] for each in between}) > 1:
            yield "delimiters", f"turns end in several ways: {', '.join(map(repr, sorted(between)))}"


def _blocks(conversation: Conversation, text: str, style: Style) -> Broken:
    """Blocks like <tool_call>…</tool_call> are closed as often as they are opened."""
    after = _without_contents(conversation, text[_begin_of_turns(conversation, text) :])
    whole = _without_contents(conversation, text)
    for name, part in ((name, after if name in _BLOCKS else whole) for name in (*_BLOCKS, *_BLOCKS_OF_TOOLS)):
        opened, closed = len(re.findall(rf"<{name}[=>]", part)), part.count(f"</{name}>")
        if opened != closed and (style.names_roles or opened > closed):
            yield "delimiters", f"<{name}> is opened {counted(opened, 'time')} and closed {counted(closed, 'time')}"
    is_open = after.rstrip().endswith("<think>") or not conversation.generation
    if after.count("<think>") > after.count("</think>") + is_open:
        yield "delimiters", "<think> is opened more often than closed"


def _without_contents(conversation: Conversation, text: str) -> str:
    for shown in sorted({text for turn in conversation.turns for text in turn.texts}, key=len, reverse=True):
        text = text.replace(shown.strip(), " ") if shown.strip() else text
    return text


def _encoded(conversation: Conversation, text: str, style: Style) -> Broken:
    """Parts of a prompt that are encoded once too often."""
    messages = _json([turn.message for turn in conversation.turns])
    if (entity := _ENTITY.search(text)) and "&" not in messages:
        yield "escaped", f"characters are written as HTML entities: {cut(text[max(0, entity.start() - 30) :], 60)}"
    if style.names_roles and (python := _PYTHON.search(text)) and not _PYTHON.search(messages):
        yield "escaped", f"a value is printed as Python writes it: {cut(text[python.start() :], 60)}"
    for each in conversation.tools:
        name, description = tool_schemas()[each].get("name", each), tool_schemas()[each]["description"]
        if f'\\"{name}\\"' in text:
            yield "escaped", f"the tool {name} is encoded as JSON twice"
        if style.names_roles and text.count(description) > 1:
            yield "tools", f"the tool {name} is in the prompt {text.count(description)} times"
    for role, shown in _said(conversation):
        if role != "tool" and f'"{shown.strip()}"' in text and f'"{shown.strip()}"' not in messages:
            yield "escaped", f"the {role} text is written as JSON: {cut(shown, 60)}"


def _role_marks(conversation: Conversation, text: str, style: Style) -> Broken:
    """Instructions begin with a mark for the system, and tool results have separate turns."""
    first = conversation.turns[0]
    if style.names_roles and first.role == "system" and (shown := "".join(first.texts[:1]).strip()):
        before = text[: text.find(shown)]
        if shown in text and not _SYSTEM.search(before):
            yield "delimiters", f"instructions stand after {cut(before[-60:], 60)}, which does not introduce them"
    question = _begin_of_turns(conversation, text)
    if not _ROLE_MARK.search(text[max(0, question - 40) : question]):
        return
    for asking, turn in pairwise(conversation.turns):
        if turn.role != "tool" or not asking.calls or not turn.texts or not turn.texts[0].strip():
            continue
        at = text.find(turn.texts[0].strip())
        begin = max(text.rfind(call.name, 0, max(at, 0)) for call in asking.calls)
        mark = _LAST_ROLE.match(text[:at]) if style.names_roles and begin < at else None
        if mark and mark[1] == "assistant" and mark.end() > begin:
            yield "result", f"the result of a tool stands in a turn of the model\n  {cut(text[begin:at], _SHOWN)}"
        if question < begin < at and not _ROLE_MARK.search(text[begin:at]):
            yield "result", f"the result of a tool has no turn of its own: {cut(text[begin:at], _SHOWN)}"


def _begin_of_turns(conversation: Conversation, text: str) -> int:
    """The position of the first content that is not an instruction; 0 if it is not found."""
    first = next((t.texts[0].strip() for t in conversation.turns if t.role not in _FREE and t.texts), "")
    return max(0, text.find(first)) if first else 0


def _reasoning(conversation: Conversation, flat: str, style: Style) -> Broken:
    if not style.reasons:
        return
    for each in conversation.under_way:
        if each not in flat:
            if _REASONING.search(style.source):
                yield "reasoning", f"the reasoning of the current turn is lost: {each!r}"
        elif not re.search(rf"<think>\s*{re.escape(each)}\s*</think>", flat):
            yield "reasoning", f"the reasoning of the current turn is not in its block: {each!r}"
    for each in conversation.past:
        if each in flat:
            yield "reasoning", f"the reasoning of an earlier turn is in the prompt: {each!r}"


def _ends(conversation: Conversation, texts: Mapping[str, str]) -> Broken:
    """A last turn with a call ends like a last turn with text."""
    answered = texts.get("ends-with-an-answer", "")
    if conversation.generation or not conversation.turns[-1].calls or not answered:
        return
    text, end = texts[conversation.name].rstrip(), answered[answered.rfind("It opens the pantry") + 19 :].strip()
    last = _LAST_MARK.search(text)
    if end and not text.endswith(end) and (last is None or last[0].startswith("</")):
        yield "calls", f"a turn with calls does not end with {end!r}: {cut(text[-60:], 60)}"


def _thinking(conversation: Conversation, texts: Mapping[str, str], style: Style) -> Broken:
    """With thinking off, the prompt leaves no thinking block open; with thinking on, it closes none."""
    name = next((name for name, check in conversation.unlike.items() if check == "thinking"), None)
    if name is None or name not in texts:
        return
    off, on = texts[conversation.name].rstrip(), texts[name].rstrip()
    if on != off and off.count("<think>") > off.count("</think>"):
        yield "thinking", f"with thinking off, the prompt ends within a thinking block: {cut(off[-60:], 60)}"
    if style.reasons and on.endswith("</think>"):
        yield "thinking", f"with thinking on, the prompt ends after a thinking block: {cut(on[-60:], 60)}"
    # Models that always reason begin inside a block, and have no switch.
    is_hybrid = _SWITCH.search(style.source) or (style.reasons and not off.endswith(("<think>", "</think>")))
    if on == off and is_hybrid:
        yield "thinking", _ALIKE["thinking"]


def _empty_result(conversation: Conversation, texts: Mapping[str, str]) -> Broken:
    empty = texts.get(conversation.without)
    if empty is None:
        return
    text = texts[conversation.name]
    for turn in conversation.turns:
        text = text.replace(turn.texts[0], "") if turn.role == "tool" else text
    if len("".join(empty.split())) < len("".join(text.split())):
        yield "result", f"an empty tool result removes its whole turn from the prompt:\n{side_by_side(text, empty)}"


def _begins_turn_after_result(conversation: Conversation, texts: Mapping[str, str], style: Style) -> Broken:
    """A prompt that ends with a tool result begins the model's turn, like a prompt that ends with a question."""
    question, alone = texts.get("question-asked", ""), texts.get("question-alone", "")
    last = conversation.turns[-1]
    mark = question[common(question, alone) :].strip().partition("\n")[0]
    if not (style.names_roles and mark and conversation.generation and last.role == "tool" and last.texts):
        return
    text = texts[conversation.name]
    after = text[max(0, text.rfind(last.texts[-1].strip())) :] if last.texts[-1].strip() else text
    if mark not in after:
        what = "after a tool result, the prompt does not begin the turn of the model"
        yield "generation", f"{what}\n  {cut(text[-60:], 60)}"


def _outer_space(conversation: Conversation, texts: Mapping[str, str]) -> Broken:
    """A template that keeps the white space around user texts also keeps it around results."""
    if "  indented by two, and blank at the end  " not in texts.get("outer-space", ""):
        return
    for turn in conversation.turns:
        for shown in turn.texts if turn.role == "tool" else ():
            text = texts[conversation.name]
            for where, part in (("before", shown.rstrip()), ("after", shown.lstrip())):
                if shown.strip() in text and part not in text:
                    yield "white space", f"the white space {where} a result is lost: {cut(shown, 60)}"
                    break


def _begins_turns_if_asked(texts: Mapping[str, str], style: Style) -> bool:
    """True for a template that has a mark for the model, and writes it on request."""
    text = texts.get("answer-before-a-question", "")
    begin, end = text.find("Is the ferry late"), text.find("It left on time")
    has_mark = 0 <= begin < end and bool(text[begin + len("Is the ferry late") : end].strip())
    return has_mark and not style.always_begins and (style.names_roles or "add_generation_prompt" in style.source)


def _order(conversation: Conversation, flat: str) -> Broken:
    """Texts of users, the model and tools keep their order. Templates may place instructions anywhere."""
    at, before = -1, ""
    for text in (flatten(shown) for role, shown in _said(conversation) if role not in _FREE):
        place = flat.find(text)
        if 0 <= place < at:
            yield "order", f"{text!r} comes before {before!r}: the order has changed"
        elif place >= 0:
            at, before = place, text


def _calls(conversation: Conversation, flat: str) -> Broken:
    """The calls of earlier turns: each name comes after the previous one, with the texts of its call nearby."""
    at = 0
    for turn in conversation.turns:
        for text in filter(None, map(flatten, turn.shown if turn.role not in _FREE else ())):
            at = max(at, flat.find(text))
        for call in turn.calls:
            before, place = at, flat.find(call.name, at)
            if place < 0:
                yield "calls", f"the call of {call.name} is lost"
                continue
            at = place + len(call.name)
            lost = [key for key in call.arguments if flat.find(key, before) < 0]
            if lost:
                yield "arguments", f"the prompt lacks arguments of {call.name}: {', '.join(lost)}"
            for leaf in leaves(call.arguments):
                # Texts that JSON escapes are skipped. Some templates write the arguments before the name.
                if _json(leaf) == f'"{leaf}"' and flat.find(flatten(leaf), before) < 0:
                    yield "arguments", f"an argument of {call.name} {_lost(leaf, flat)}: {leaf!r}"


def _arguments_as_they_are(conversation: Conversation, text: str) -> Broken:
    """The arguments of calls: texts keep their white space and special characters; in JSON, each value is unchanged."""
    written = "".join(text.split())
    messages = _json([turn.message for turn in conversation.turns])
    for call in (call for turn in conversation.turns for call in turn.calls):
        pairs = list(_pairs(call.arguments))
        for value in (value for _, value in pairs if isinstance(value, str)):
            forms = (value, _json(value)[1:-1], json.dumps(value)[1:-1])
            if value.strip() in text and not any(form in text for form in forms):
                yield "white space", f"the white space in an argument of {call.name} has changed: {cut(value, _SHOWN)}"
        if any(value is None for _, value in pairs) and "None" in text and "None" not in messages:
            yield "arguments", f"an argument of {call.name} that is null is written as None"
        if not any(_as_json(*pair) in written for pair in call.arguments.items()):
            continue  # some templates do not write arguments as JSON
        for key, value in pairs:
            if _compact(value).isascii() and _as_json(key, value) not in written:
                what = f"no {_compact(key)}: {cut(_compact(value), _SHOWN)}"
                yield "arguments", f"an argument of {call.name} has changed: {what}"


def _pairs(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the innermost values in arguments with their keys. A list counts as one value."""
    for key, each in value.items():
        if isinstance(each, dict) and each:
            yield from _pairs(each)
        else:
            yield key, each


def _as_json(key: str, value: Any) -> str:
    return "".join(f"{_compact(key)}:{_compact(value)}".split())


def leaves(value: Any) -> Iterator[str]:
    """Yields the texts in arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)


def _tools(conversation: Conversation, flat: str, instructions: str) -> Broken:
    called = Counter(call.name for turn in conversation.turns for call in turn.calls)
    for each in conversation.tools:
        schema = tool_schemas()[each]
        name = schema.get("name", each)
        properties = schema["parameters"]["properties"]
        missing = [part for part in (schema["description"], *properties) if part not in flat]
        if name not in instructions and flat.count(name) <= called[name]:  # only in its calls
            missing.insert(0, name)
        inside = [part for part in _described(properties) if part not in flat]
        if inside and not missing and not _ESCAPED.search(flat):
            yield "types", f"parts of the parameters of {name} are not in the prompt: {', '.join(map(repr, inside))}"
        if missing:
            is_escaped = _ESCAPED.search(flat) and missing == [schema["description"]]
            what = (
                f"the description of the tool {name} is escaped"
                if is_escaped
                else f"parts of the tool {name} are missing"
            )
            yield "tools", f"{what} in the prompt: {', '.join(map(repr, missing))}"


def _schemas(conversation: Conversation, text: str) -> Broken:
    """The types and `required` lists of tools, if the template writes parameters as JSON."""
    written = "".join(text.split())
    wanted: Counter[tuple[str, str]] = Counter()
    for each in conversation.tools:
        wanted.update(_constraints(tool_schemas()[each]["parameters"]))
    if written.count('"type":"object"') < wanted["types", '"type":"object"']:
        return  # some templates have their own words for types
    for (check, part), count in wanted.items():
        if written.count(part) < count:
            times, wanted_times = counted(written.count(part), "time"), counted(count, "time")
            yield check, f"{part} is in the prompt {times}, but in the tools {wanted_times}"


def _constraints(schema: Mapping[str, Any]) -> Broken:
    """Yields the types and `required` lists in a schema as compact JSON, each with the name of its property."""
    if "type" in schema:
        yield "types", f'"type":{_compact(schema["type"])}'
    if "required" in schema:
        yield "required", f'"required":{_compact(schema["required"])}'
    for each in (*schema.get("properties", {}).values(), *filter(None, (schema.get("items"),))):
        yield from _constraints(each)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _described(properties: Mapping[str, Any]) -> Iterator[str]:
    """Yields the descriptions of parameters, their allowed values, and the names of nested parameters."""
    for each in properties.values():
        yield from filter(None, (each.get("description"), *each.get("enum", ()), *each.get("properties", ())))
        yield from _described(each.get("properties", {}))


def _turn_marks(conversation: Conversation, text: str, *, names_roles: bool) -> Broken:
    """The marks between turns: equal for equal roles, different for different roles, and at the end for the model."""
    turns = [turn for turn in conversation.turns if turn.role not in _FREE]
    if any(turn.calls or len(turn.texts) != 1 or turn.role not in _ROLES for turn in turns) or conversation.hidden:
        return
    places = [text.find(turn.texts[0].strip()) for turn in turns]
    if places != sorted(places) or min(places, default=-1) < 0:
        return  # another finding reports it
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


def _marks(to_model: Sequence[str], to_user: Sequence[str], *, names_roles: bool) -> Broken:
    for role, marks in (("assistant", to_model), ("user", to_user)):
        if len(set(marks)) > 1:
            yield "roles", f"turns of the {role} begin in several ways: {', '.join(map(repr, dict.fromkeys(marks)))}"
        elif names_roles and marks and role not in marks[0].lower():
            yield "roles", f"a turn of the {role} begins with {marks[0]!r}, which does not name it"
    if to_model and to_user and to_model[0] == to_user[0]:
        yield "roles", f"turns of the user and of the model both begin with {to_model[0]!r}"


def _generation(mark: str, tail: str, to_user: Sequence[str]) -> Broken:
    if mark and not tail:
        yield "generation", "the prompt does not begin the turn of the model"
    elif not mark.startswith(tail) and not tail.startswith(mark):
        # After the role, the prompt may put a reasoning model into a block. In earlier turns, the block is closed or
        # missing.
        of_any_role = max((common(mark, other) for other in to_user), default=0)
        if common(mark, tail) <= of_any_role:
            yield "generation", f"the prompt ends with {tail!r}, while turns of the model begin with {mark!r}"
    elif len(tail) < len(mark) and mark.lower().rfind("assistant") >= len(tail):
        yield "generation", f"the prompt ends with {tail!r}, and does not begin the turn of the model"


def _lost(text: str, flat: str) -> str:
    return "is escaped" if _ESCAPED.search(flat) and not text.isascii() else "is lost"


def flatten(text: str) -> str:
    return " ".join(text.split())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# Differences of two texts: side by side, and in words. The same difference has the same words everywhere.

_LONGEST_EDIT = 80


def side_by_side(before: str, now: str, longest: int = 400) -> str:
    """Shows two texts one below the other, from about the first difference on."""
    start = common(before, now)
    begin = max(0, before.rfind("\n", 0, start) + 1, start - longest // 4)
    return f"  before: {cut(before[begin:], longest)}\n  now:    {cut(now[begin:], longest)}"


def text_difference(before: str, now: str) -> str:
    """Describes the difference of two texts: `one newline added at the end`. The same difference has the same words.
    Empty if too much differs."""
    if now.startswith(REFUSED) and not before.startswith(REFUSED):
        return now  # equal for every question with this refusal
    start = common(before, now)
    end = min(common(before[::-1], now[::-1]), len(before) - start, len(now) - start)
    gone, come = before[start : len(before) - end], now[start : len(now) - end]
    if not 0 < max(len(gone), len(come)) <= _LONGEST_EDIT:
        return ""
    place = "" if end and start else "at the beginning" if end else "at the end"
    if gone and come:
        what = f"{come!r} instead of {gone!r}"
    elif set(gone + come) == {"\n"}:
        count = len(gone + come)
        what = f"{'one newline' if count == 1 else f'{count} newlines'} {'removed' if gone else 'added'}"
    else:
        what = f"{(gone or come)!r} {'removed' if gone else 'added'}"
    return f"{what} {place}".strip()


def cut(text: str, longest: int) -> str:
    """The text as a Python literal, cut after ``longest`` characters."""
    return repr(text if len(text) <= longest else f"{text[:longest]}…")


def common(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))
