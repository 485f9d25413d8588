"""What is the template's loss, and what the parser's: of turns that one writes and the other reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builder.lab.prove import conversations, driver, round_trips
from builder.lab.prove.conversations import Call, ParsedMessage, Question, Trip
from tests.lab.prove import rendering

TRIP = Trip("weather", "Look", calls=(Call("weather", {"city": "Bern", "days": None}),))


def question(trip: Trip = TRIP) -> Question:
    return Question(f"turn/{trip.name}", trip, {})


def read(answer: dict[str, Any], trip: Trip = TRIP) -> round_trips.Reading:
    return round_trips.read_turn(question(trip), trip, answer)


def answer(arguments: Any, text: str = "", **streamed: Any) -> dict[str, Any]:
    whole = {"content": "Look", "reasoning": "", "calls": [{"name": "weather", "arguments": json.dumps(arguments)}]}
    text = text or f"Look weather {json.dumps(arguments)}"
    return {"text": text, "whole": whole, "streamed": {"chunks": whole, **streamed}}


def test_what_comes_back_is_no_finding() -> None:
    reading = read(answer({"city": "Bern", "days": None}))
    assert (reading.lost, reading.broken, reading.in_chunks) == ("", (), "")


def test_what_the_template_leaves_out_is_not_the_parser_s() -> None:
    assert read({"refused": "only one call at once"}).lost == "the template refuses it: only one call at once"
    assert read(answer({"city": "Be"}, "Look weather Be")).lost == "the template does not write the argument 'Bern'"
    assert read(answer({}, "Look")).lost == "the template does not write each call of weather"
    spoken = read({**answer({"city": "Bern", "days": None}, 'weather "Bern"'), "whole": answer(None)["whole"]})
    assert spoken.lost == "the template does not write the content"
    assert [check for check, _ in spoken.broken] == ["content", "arguments"]


def test_a_text_that_the_template_quotes_without_escaping_it_is_lost() -> None:
    trip = Trip("note", calls=(Call("note", {"body": 'say "so"'}),))
    assert read({**answer({}), "text": 'note(body="say "so"")'}, trip).lost.startswith(
        "the template does not write the arg"
    )
    assert read({**answer({}), "text": 'note <body>say "so"</body>'}, trip).broken


def test_a_value_that_the_template_writes_as_python_does_is_the_template_s() -> None:
    reading = read(answer({"city": "Bern", "days": "None"}))
    assert (reading.broken, reading.lost) == ((), "the template writes values as Python does, or as bare text")
    assert read(answer({"city": "bern", "days": "None"}, "Look weather Bern")).broken


def test_what_the_parser_misreads_is_broken() -> None:
    (finding,) = read(answer({"city": "Bern"})).broken
    assert finding[0] == "arguments"
    assert [check for check, _ in read({**answer({}, "Look weather Bern"), "whole": {"refused": "x"}}).broken] == [
        "refused"
    ]


def test_a_stream_is_misread_token_by_token_or_only_in_chunks() -> None:
    right = {"city": "Bern", "days": None}
    other = answer({"city": "B"})["whole"]
    whole = answer(right)["whole"]
    assert [check for check, _ in read(answer(right, chunks=other)).broken] == ["streamed"]
    assert [check for check, _ in read(answer(right, tokens={"refused": "x"})).broken] == ["streamed"]
    chunks = read(answer(right, chunks=other, tokens=whole))
    assert chunks.broken == ()
    assert chunks.in_chunks.startswith("arguments: the arguments of weather")


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
    assert [name for name, _ in round_trips.of_message(expected, message)] == ([check] if check else [])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1.0, True), (1, True, False), ({"a": [1]}, {"a": [1.5]}, False), (2**53 + 1, 2**53, False)],
)
def test_json_values_are_not_pythons(one: Any, other: Any, same: bool) -> None:
    assert round_trips.same_json(one, other) is same


# The verdict on all turns of a model.


def judged(changes: dict[str, dict[str, Any]], *, is_known: bool = False) -> dict[str, list[str]]:
    """The texts of the findings by verdict, where the turns that ``changes`` names are answered so."""
    readings = []
    for each in conversations.questions("minimax_m2", "minimax_m2"):
        if isinstance(each.subject, Trip):
            given = changes.get(each.subject.name, rendering.turn(each.subject))
            readings.append(round_trips.read_turn(each, each.subject, given))
    found: dict[str, list[str]] = {}
    for finding in round_trips.judge_readings(readings, is_known=is_known, tool_parser=True):
        found.setdefault(finding.verdict, []).append(f"{finding.at} {finding.text}")
    return found


def all_calls(**changes: Any) -> dict[str, dict[str, Any]]:
    trips = [trip for trip in conversations.trips() if trip.calls and not trip.reasoning]
    return {trip.name: {**rendering.turn(trip), **changes} for trip in trips}


NOTHING = {"content": "", "reasoning": "", "calls": []}


def test_a_parser_of_any_name_is_proven() -> None:
    assert judged({}) == {}


def test_what_it_misreads_of_its_template_fails_and_what_is_hard_to_read_is_a_limit() -> None:
    calls = all_calls(whole=NOTHING, streamed={"chunks": NOTHING})
    wrong = judged({name: calls[name] for name in ("call", "nothing")})
    assert wrong.keys() == {"fail", "pass"}
    assert all(text.startswith("turn/call ") for text in wrong["fail"])
    assert all(text.startswith("turn/nothing ") for text in wrong["pass"])


def test_a_template_whose_calls_another_parser_reads_proves_nothing() -> None:
    (text,) = judged(all_calls(whole=NOTHING, streamed={"chunks": NOTHING}))["unclear"]
    assert "tool calls are not proven: " in text
    assert "fail" in judged(all_calls(whole=NOTHING, streamed={"chunks": NOTHING}), is_known=True)


def test_a_template_that_writes_no_calls_proves_nothing() -> None:
    (text,) = judged(all_calls(text=""))["unclear"]
    assert text == " tool calls are not proven: the template does not write each call of weather"
    (text,) = judged({name: {"refused": "no tools"} for name in all_calls()})["unclear"]
    assert text == " tool calls are not proven: the template refuses it: no tools"


def test_a_template_that_writes_no_thought_proves_nothing_though_it_refuses_one() -> None:
    thoughts = [trip for trip in conversations.trips() if trip.reasoning]
    unwritten = {trip.name: {**rendering.turn(trip), "text": trip.content} for trip in thoughts if not trip.calls}
    refused = {trip.name: {"refused": "nothing is written"} for trip in thoughts if trip.calls or not trip.content}
    (text,) = judged(unwritten | refused)["unclear"]
    assert text == " reasoning is not proven: the template does not write the reasoning"


# What the model writes after a prompt that its template continues otherwise.


@pytest.mark.parametrize(
    ("opened", "turn", "reasoning", "written"),
    [
        ("<think>\n", "The tide", "", "</think>The tide"),
        ("<think>\n", "The tide", "why", "why</think>The tide"),
        ("<think>\n\n</think>\n\n", "The tide", "", "The tide"),
        ("\n<think>", "<think>why</think>The tide", "why", "why</think>The tide"),
        ("<|A|><think>", "  <|A|>  </think>  The tide", "why", "why  </think>  The tide"),
        ("<|A|></think>", "  <|A|>\n  </think>  The tide", "", "  The tide"),
        ("<|START_THINKING|>", "<|START_RESPONSE|>x", "why", "why<|END_THINKING|><|START_RESPONSE|>x"),
        ("", "</think>x", "why", "why</think>x"),
        ("[THINK]", "x", "why", "why[/THINK]x"),
    ],
)
def test_a_thought_that_the_prompt_begins_is_ended(opened: str, turn: str, reasoning: str, written: str) -> None:
    assert driver._after_prompt(opened, turn, reasoning) == written
