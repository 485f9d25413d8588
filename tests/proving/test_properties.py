"""The properties of prompts and messages: what is broken is named, and nothing is found where nothing is broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.lab.prove import conversations, judging
from builder.lab.prove.conversations import ParsedMessage
from tests.proving import rendering


def broken(source: str) -> set[str]:
    """The names of all properties that a template breaks."""
    texts = rendering.prompts(source)
    return {
        check
        for each in conversations.conversations()
        for check, _ in (
            *judging.of_prompt(each, texts[each.name], rendering.style(source)),
            *judging.of_prompts(each, texts, rendering.style(source)),
        )
    }


def test_nothing_is_found_in_a_template_without_fault() -> None:
    assert broken(rendering.template()) == set()


def test_prompts_that_code_of_vllm_writes_always_begin_the_turn_of_the_model() -> None:
    source = rendering.template().replace("{%- if add_generation_prompt -%}", "{%- if true -%}")
    texts = rendering.prompts(source)
    found = {
        always_begins: {
            check
            for each in conversations.conversations()
            for check, _ in judging.of_prompts(
                each, texts, replace(rendering.style(source), always_begins=always_begins)
            )
        }
        for always_begins in (False, True)
    }
    assert found[False] - found[True] == {"generation"}


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("message.role in (", 'message.role == "system" -%}{%- elif message.role in (', "content"),
        ("{{ text(message.content) }}\n</tool_response>", "</tool_response>", "content"),
        ("{%- for message in messages -%}\n", "{%- for message in messages | reverse -%}\n", "order"),
        ("<|im_start|>user\n", "<|im_start|>person\n", "roles"),
        ("<|im_start|>user\n", "<|im_start|>assistant\n", "roles"),
        ("{{ tool | tojson }}", "{{ tool.function.name }}", "tools"),
        ("{%- if add_generation_prompt -%}", "{%- if false -%}", "generation"),
        ("{{ text(message.content) }}\n</tool_response>", "{{ text(message.content) | tojson }}</tool_response>", ""),
        ("call.function.arguments | tojson", '"{}"', "arguments"),
        ('"name": {{ call.function.name | tojson }}', '"name": ""', "calls"),
        (
            '"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}',
            '"arguments": {{ call.function.arguments | tojson }}, "name": {{ call.function.name | tojson }}',
            "",
        ),
        ('.split("<think>")[-1]', "", "reasoning"),
        ("message.reasoning_content and loop.index0 > last.user", "message.reasoning_content", "reasoning"),
        ("{%- if content is string -%}", "{%- if true -%}", "parts"),
        ("{%- if content is string -%}", "{%- if content is string or content is none -%}", "nothing"),
    ],
)
def test_what_is_broken_is_named(old: str, new: str, check: str) -> None:
    source = rendering.template()
    assert old in source
    found = broken(source.replace(old, new))
    assert check in found if check else found == set()


@pytest.mark.parametrize(
    ("begins", "found"),
    [("assistant\n<think>", set()), ("user\n<think>", {"generation"}), ("", {"generation", "delimiters"})],
)
def test_a_model_may_begin_in_a_block_that_its_earlier_turns_have_closed(begins: str, found: set[str]) -> None:
    turn, generation = "{{ text(message.content).split", "<|im_start|>assistant\n{% if enable_thinking"
    source = rendering.template()
    assert turn in source
    assert generation in source
    source = source.replace(turn, f"</think>{turn}")
    source = source.replace(
        "<think>\n\n</think>\n\n{% endif -%}\n{%- endif -%}", "\n</think>\n\n{% endif -%}\n{%- endif -%}"
    )
    assert broken(source.replace(generation, f"<|im_start|>{begins}{{% if enable_thinking")) == found


@pytest.mark.parametrize(
    ("message", "check"),
    [
        (ParsedMessage("Look", "", (("weather", {"city": "Bern"}),)), ""),
        (ParsedMessage("Look <tool_call>", "", (("weather", {"city": "Bern"}),)), "content"),
        (ParsedMessage("Look", "why", (("weather", {"city": "Bern"}),)), "reasoning"),
        (ParsedMessage("Look", "", ()), "calls"),
        (ParsedMessage("Look", "", (("weather", '{"city": "Bern"}'),)), "arguments"),
        (ParsedMessage("Look", "", (("weather", {"city": "Genf"}),)), "arguments"),
    ],
)
def test_a_message_is_compared_part_by_part(message: ParsedMessage, check: str) -> None:
    expected = ParsedMessage("Look", "", (("weather", {"city": "Bern"}),))
    assert [name for name, _ in judging.of_message(expected, message)] == ([check] if check else [])


def test_a_stream_that_differs_is_told_once() -> None:
    whole, other = ParsedMessage("one"), ParsedMessage("two")
    assert list(judging.of_streamed(whole, [whole, whole])) == []
    (finding,) = judging.of_streamed(whole, [whole, other, other])
    assert finding[0] == "streamed"


@pytest.mark.parametrize(("one", "other", "same"), [(1, 1, True), (1, True, False), ({"a": [1]}, {"a": [1.5]}, False)])
def test_json_values_are_not_pythons(one: Any, other: Any, same: bool) -> None:
    assert judging.same_json(one, other) is same


def test_a_refusal_is_one_difference_whatever_was_there() -> None:
    refusal = "refused: 'nested' is undefined"
    assert {judging.text_difference(before, refusal) for before in ("call: weather {}", "content: x", "y" * 999)} == {
        refusal
    }
    assert judging.text_difference("refused: a", "refused: b") != "refused: b"


def test_a_difference_is_shown_where_it_begins() -> None:
    before, now = "a\n" * 500 + "Bern", "a\n" * 500 + "Genf"
    assert judging.side_by_side(before, now) == "  before: 'Bern'\n  now:    'Genf'"
