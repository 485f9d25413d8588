"""The conversations themselves: how many, for whom, and that each can be told in a prompt."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from builder.lab.prove import conversations

FAMILIES = {"hermes": 40, "xml": 40, "glm": 39, "gpt-oss": 32, "plain": 13}


def test_there_are_enough_of_each_kind() -> None:
    outputs = conversations.outputs()
    assert len(conversations.conversations()) >= 110
    assert {family: sum(each.family == family for each in outputs) for family in FAMILIES} == FAMILIES


@pytest.mark.parametrize("parsers", [("hermes", "qwen3"), ("qwen3_coder", ""), ("glm45", "glm45"), ("openai", "")])
def test_a_model_that_calls_tools_is_asked_at_least_60(parsers: tuple[str, str]) -> None:
    questions = conversations.questions(*parsers)
    assert len(questions) >= 60
    assert {question.kind for question in questions} == {"prompt", "output", "turn"}
    assert len({question.name for question in questions}) == len(questions)


def test_a_model_without_tools_is_offered_none() -> None:
    questions = conversations.questions("", "")
    assert len(questions) >= 25
    assert all("tools" not in json.dumps(question.body.get("request")) for question in questions)


def test_what_a_message_says_is_in_no_other_one() -> None:
    for each in conversations.conversations():
        texts = [text for turn in each.turns for text in turn.shown if text]
        assert not [pair for pair in combinations(texts, 2) if pair[0] in pair[1] or pair[1] in pair[0]], each.name


def test_a_long_text_has_no_part_twice() -> None:
    (very_long,) = [each for each in conversations.conversations() if each.name == "very-long-result"]
    items = very_long.turns[-1].texts[0].split(" record")
    assert 60_000 < len(very_long.turns[-1].texts[0]) <= 65_536
    assert len(set(items)) == len(items)


def test_a_request_is_as_a_client_sends_it() -> None:
    steps = next(each for each in conversations.conversations() if each.name == "parallel-calls")
    messages = steps.request()["messages"]
    calls = messages[1]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [
        {"city": "Engelberg"},
        {"city": "Grindelwald", "days": 4},
    ]
    assert [message["tool_call_id"] for message in messages[2:]] == [call["id"] for call in calls]


def test_another_question_has_another_digest() -> None:
    digests = [question.digest for question in conversations.questions("hermes", "qwen3")]
    assert len(set(digests)) == len(digests)
    assert conversations.digest_of_set().startswith("sha256:")


def test_a_parser_that_may_take_everything_for_reasoning_is_only_held_against_the_number_before() -> None:
    """As deepseek_r1 of vLLM 0.32 does, whose models answer within a block that the prompt has opened."""
    every = conversations.questions("hermes", "deepseek_r1")
    assert {question.kind for question in every if question.is_open} == {"output", "turn"}
    assert all(question.expected is None for question in every if question.is_open)
    assert not any(question.is_open for question in conversations.questions("hermes", "qwen3"))


@pytest.mark.parametrize(
    ("parsers", "count"), [(("qwen3_coder", "qwen3"), 2), (("hermes", ""), 0), (("openai", ""), 0)]
)
def test_open_reasoning_is_asked_of_models_that_reason_between_tags(parsers: tuple[str, str], count: int) -> None:
    asked = [each for each in conversations.questions(*parsers) if each.name.startswith("open-reasoning")]
    assert len(asked) == count
