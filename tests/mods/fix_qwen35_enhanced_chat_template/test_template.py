"""The chat template, rendered whole for every case it must handle."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .cases import CASES, NOT_AN_OBJECT, REFUSALS, ROUND, ROUND_TRIPS, Case, Refusal, assistant, call, system, user
from .rendering import TEMPLATE, compile_template, render


def name_of(value: Case | Refusal) -> str:
    return value.name.replace(" ", "-")


def one_call(arguments: object) -> str:
    return render([assistant(None, call("store", arguments))])


def call_turn(body: str) -> str:
    return f"<|im_start|>assistant\n<tool_call>\n<function=store>\n{body}</function>\n</tool_call><|im_end|>\n"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_renders(case: Case) -> None:
    assert render(case.messages, case.tools, **case.options) == case.expected


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_does_not_depend_on_whitespace_settings(case: Case) -> None:
    bare = compile_template()
    assert bare.render(messages=case.messages, tools=case.tools, **case.options) == case.expected


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_leaves_the_conversation_as_it_was(case: Case) -> None:
    before = copy.deepcopy((case.messages, case.tools))
    render(case.messages, case.tools, **case.options)
    assert (case.messages, case.tools) == before


@pytest.mark.parametrize("case", REFUSALS, ids=name_of)
def test_refuses(case: Refusal) -> None:
    with pytest.raises(jinja2.TemplateError) as refusal:
        render(case.messages)
    assert str(refusal.value) == case.error


def test_a_conversation_in_strings_renders_like_one_in_parts() -> None:
    """vLLM passes strings or lists of parts, whichever format it takes the template for."""
    as_parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in ROUND]
    assert render(as_parts) == render(ROUND)


@pytest.mark.parametrize("text", NOT_AN_OBJECT)
def test_arguments_that_are_no_object_are_shown_as_they_came(text: str) -> None:
    assert one_call(text) == call_turn(f"{text}\n")


@pytest.mark.parametrize("arguments", ROUND_TRIPS, ids=repr)
def test_a_json_string_renders_like_the_mapping(arguments: dict[str, Any]) -> None:
    assert one_call(json.dumps(arguments, ensure_ascii=False)) == one_call(arguments)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.text())
def test_any_text_survives(value: str) -> None:
    assert one_call({"text": value}) == call_turn(f"<parameter=text>\n{value}\n</parameter>\n")


@pytest.mark.slow
@given(json_values.filter(lambda value: not isinstance(value, str)))
def test_any_other_value_is_json(value: object) -> None:
    written = json.dumps(value, ensure_ascii=False)
    assert one_call({"value": value}) == call_turn(f"<parameter=value>\n{written}\n</parameter>\n")


@pytest.mark.slow
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_any_json_string_renders_like_the_mapping(arguments: dict[str, Any]) -> None:
    assert one_call(json.dumps(arguments, ensure_ascii=False)) == one_call(arguments)


@pytest.mark.slow
@given(st.dictionaries(st.text(), st.text() | st.integers(), max_size=5), st.sampled_from([None, 2]))
def test_any_escaped_or_indented_json_string_renders_like_the_mapping(
    arguments: dict[str, Any], indent: int | None
) -> None:
    assert one_call(json.dumps(arguments, indent=indent)) == one_call(arguments)


@pytest.mark.slow
@given(st.text())
def test_any_string_of_arguments_renders(text: str) -> None:
    assert one_call(text).startswith("<|im_start|>assistant\n<tool_call>\n<function=store>\n")


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([system("S"), user("U"), assistant("A"), {"role": "tool", "content": "T"}]), min_size=1)
)
def test_any_order_of_roles_makes_whole_turns(messages: list[dict[str, Any]]) -> None:
    prompt = render(messages)
    turns = prompt.split("<|im_end|>\n")
    assert turns.pop() == ""
    assert all(turn.startswith("<|im_start|>") and turn.count("<|im_start|>") == 1 for turn in turns)


def test_a_longer_conversation_only_adds_to_the_prompt() -> None:
    """Within a round every prompt is the beginning of the next, which prefix caching needs."""
    prompts = [render(ROUND[:end]) for end in range(3, len(ROUND) + 1)]
    assert all(after.startswith(before) for before, after in itertools.pairwise(prompts))


def test_says_developer_in_quotes() -> None:
    """vLLM looks for this very text; without it, it would move developer messages to the top itself."""
    assert "'developer'" in TEMPLATE.read_text(encoding="utf-8")


def test_is_ascii() -> None:
    """vLLM opens the file in whatever encoding the container's locale asks for."""
    assert TEMPLATE.read_bytes().isascii()
