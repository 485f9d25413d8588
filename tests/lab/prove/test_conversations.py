"""The conversations and turns themselves: how many, for whom, and that each can be found in a prompt."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from builder.lab.prove import conversations


def test_there_are_enough_of_each_kind() -> None:
    trips = conversations.trips()
    assert len(conversations.conversations()) >= 110
    assert sum(bool(trip.calls) for trip in trips) >= 35
    assert sum(bool(trip.reasoning) for trip in trips) >= 6
    assert sum(trip.hard for trip in trips) < len(trips) / 2


@pytest.mark.parametrize("parsers", [("hermes", "qwen3"), ("minimax_m2", ""), ("glm45", "glm45"), ("openai", "")])
def test_a_model_that_calls_tools_is_asked_at_least_60(parsers: tuple[str, str]) -> None:
    questions = conversations.questions(*parsers)
    assert len(questions) >= 60
    assert {question.kind for question in questions} == {"prompt", "turn"}
    assert len({question.name for question in questions}) == len(questions)


def test_a_model_without_tools_is_offered_none() -> None:
    questions = conversations.questions("", "")
    assert len(questions) >= 25
    assert all("tools" not in json.dumps(question.body.get("request")) for question in questions)


def test_a_plain_turn_is_of_a_client_that_offers_no_tools_and_sets_no_options() -> None:
    plain = {trip.name for trip in conversations.trips() if trip.plain}
    asked = {
        each.subject.name: each.body["before"]
        for each in conversations.questions("hermes", "qwen3")
        if each.kind == "turn"
    }
    assert plain <= asked.keys()
    assert all({"tools", "chat_template_kwargs"}.isdisjoint(asked[name]) for name in plain)
    assert {"tools", "chat_template_kwargs"} <= asked["answer"].keys()


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


@pytest.mark.parametrize(
    ("parsers", "has_calls", "has_reasoning"),
    [(("hermes", "qwen3"), True, True), (("hermes", ""), True, False), (("", "qwen3"), False, True)],
)
def test_a_turn_is_for_a_parser_that_reads_it(parsers: tuple[str, str], has_calls: bool, has_reasoning: bool) -> None:
    trips = [each.subject for each in conversations.questions(*parsers) if isinstance(each.subject, conversations.Trip)]
    assert any(trip.calls for trip in trips) == has_calls
    assert any(trip.reasoning for trip in trips) == has_reasoning


@pytest.mark.parametrize(
    ("parsers", "roles"),
    [
        (("hermes", "qwen3"), ["user", "assistant", "tool", "assistant", "user"]),
        (("", "qwen3"), ["user", "assistant", "user"]),
    ],
)
def test_a_later_turn_stands_after_others(parsers: tuple[str, str], roles: list[str]) -> None:
    (question,) = [each for each in conversations.questions(*parsers) if each.name == "turn/later-reasoning"]
    before, after = question.body["before"]["messages"], question.body["after"]["messages"]
    assert [message["role"] for message in before] == roles
    assert after[:-1] == before
    assert after[-1]["content"] == "At six."


@pytest.mark.parametrize("key", ["rewrite", "spelled", "again", "begun", "quoted", "cut", "ends"])
def test_only_a_turn_that_is_written_otherwise_says_so(key: str) -> None:
    bodies = {each.name: each.body for each in conversations.questions("hermes", "qwen3") if each.kind == "turn"}
    otherwise = {f"turn/{trip.name}" for trip in conversations.trips() if getattr(trip, key)}
    assert otherwise
    assert {name for name, body in bodies.items() if key in body} == otherwise


def test_a_client_may_ask_otherwise() -> None:
    bodies = {each.name: each.body for each in conversations.questions("hermes", "qwen3")}
    assert bodies["turn/call"]["before"]["tool_choice"] == "auto"
    assert bodies["turn/call-required"]["before"]["tool_choice"] == "required"
    assert bodies["turn/reasoning-hidden"]["before"]["include_reasoning"] is False
    wanted, unwanted = bodies["turn/reasoning-and-answer"], bodies["turn/reasoning-that-nobody-wants"]
    assert wanted["before"]["chat_template_kwargs"]["enable_thinking"] is True
    assert unwanted["before"]["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert unwanted["after"]["messages"][-1]["reasoning"] == "Six follows from the almanac."


def test_calls_of_kimi_have_ids_that_name_what_they_call() -> None:
    (question,) = [each for each in conversations.questions("kimi_k2", "") if each.name == "turn/three-calls"]
    calls = question.body["after"]["messages"][1]["tool_calls"]
    assert [call["id"] for call in calls] == [
        "functions.list_devices:0",
        "functions.search_files:1",
        "functions.weather:2",
    ]


@pytest.mark.parametrize(
    ("parsers", "count"), [(("qwen3_coder", "qwen3"), 2), (("hermes", ""), 0), (("openai", ""), 0)]
)
def test_open_reasoning_is_asked_of_models_that_reason_between_tags(parsers: tuple[str, str], count: int) -> None:
    asked = [each for each in conversations.questions(*parsers) if each.name.startswith("open-reasoning")]
    assert len(asked) == count
