"""The verdict: from properties, and from what was before."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from builder.lab.prove import conversations, driver, judging, properties, prove
from builder.lab.prove.conversations import Call, ParsedMessage, Question, Trip
from builder.lab.prove.judging import Judgement, Reference
from builder.lab.prove.properties import Style
from tests.lab.prove import rendering

QUESTIONS = conversations.questions("hermes", "qwen3")


def judge(answers: dict[str, Any], reference: Reference | None = None, tokenizer: str = "t1", **more: Any) -> Judgement:
    return judging.judge_answers(
        QUESTIONS,
        answers,
        tokenizer=tokenizer,
        style=rendering.style(rendering.template()),
        reference=reference,
        **more,
    )


def good() -> dict[str, Any]:
    return rendering.answers(QUESTIONS, rendering.template())


def reference(judgement: Judgement) -> Reference:
    return Reference("small:1", judgement.goldens, judgement.texts)


@pytest.mark.slow
def test_all_is_well() -> None:
    judgement = judge(good())
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert judgement.counts["conversations"] + judgement.counts["outputs"] == len(QUESTIONS)
    assert len(judgement.goldens) == len(QUESTIONS) + 1


@pytest.mark.slow
def test_the_same_again_is_not_changed() -> None:
    again = judge(good(), reference(judge(good())))
    assert (again.verdict, again.counts["compared"]) == ("pass", len(QUESTIONS))


@pytest.mark.slow
def test_a_broken_property_fails_whatever_was_before() -> None:
    answers = good()
    answers["question"] = {"text": "<|im_start|>assistant", "ids": [1]}
    judgement = judge(answers, reference(judge(good())))
    assert judgement.verdict == "fail"
    assert ("content", "question") in {(finding.check, finding.at) for finding in judgement.findings}


@pytest.mark.slow
def test_another_prompt_is_changed_and_shown_side_by_side() -> None:
    answers = good()
    text = answers["question"]["text"].replace("How many", "A word. How many")
    answers["question"] = {"text": text, "ids": [1, 2, 3]}
    judgement = judge(answers, reference(judge(good())))
    (finding,) = judgement.findings
    assert (judgement.verdict, finding.verdict, finding.at) == ("changed", "changed", "question")
    first, before, now = finding.text.splitlines()
    assert first == "'A word. ' added, compared with small:1"
    assert before.startswith("  before: 'How many")
    assert now.startswith("  now:    'A word. How many")


@pytest.mark.slow
def test_the_same_difference_in_all_prompts_is_one_finding() -> None:
    answers = good()
    prompts = [question.name for question in QUESTIONS if question.kind == "prompt"]
    for name in prompts:
        answers[name] = {"text": answers[name]["text"] + "\n", "ids": [1]}
    judgement = judge(answers, reference(judge(good())))
    assert (judgement.verdict, judgement.counts["changed"]) == ("changed", len(prompts))
    (finding,) = judgement.findings
    assert finding.at == f"{len(prompts)} of {len(prompts)} conversations"
    assert finding.text.startswith("one newline added at the end, compared with small:1\n  first in question\n")


@pytest.mark.slow
def test_without_the_texts_of_before_it_still_shows() -> None:
    answers = good()
    answers["question"] = {**answers["question"], "ids": [1]}
    before = judge(good())
    judgement = judge(answers, Reference("small:1", before.goldens))
    assert judgement.verdict == "changed"
    assert "not stored on this machine" in judgement.findings[0].text


@pytest.mark.slow
def test_another_tokenizer_is_compared_by_text() -> None:
    answers = good()
    for answer in answers.values():
        if "ids" in answer:
            answer["ids"] = [*answer["ids"], 0]
    assert judge(answers, reference(judge(good())), tokenizer="t2").verdict == "pass"
    assert judge(answers, reference(judge(good()))).verdict == "changed"


@pytest.mark.slow
def test_a_date_in_the_prompt_is_not_a_change() -> None:
    def on(day: str) -> Judgement:
        answers = good()
        text = f"Today is {day}.\n{answers['question']['text']}"
        answers["question"] = {"text": text, "ids": list(text.encode())}
        return judge(answers, dates=(day,))

    before = on("22 Nov 2026")
    assert before.goldens == on("23 Nov 2026").goldens


@pytest.mark.slow
def test_a_turn_that_ends_early_may_change_only() -> None:
    answers = good()
    read = {"content": "<tool_call>", "reasoning": "", "calls": []}
    answers["turn/cut-off-call"] = {"text": "<tool_call>", "whole": read, "streamed": {"chunks": read}}
    assert judge(answers).verdict == "pass"
    assert judge(answers, reference(judge(good()))).verdict == "changed"


@pytest.mark.slow
def test_a_stream_in_other_pieces_has_changed_and_is_no_fault() -> None:
    def streamed(*pieces: str) -> dict[str, Any]:
        answers = good()
        streams = {kind: {**each, "pieces": list(pieces)} for kind, each in answers["turn/call"]["streamed"].items()}
        answers["turn/call"] = {**answers["turn/call"], "streamed": streams}
        return answers

    before = judge(streamed("call 0 id type name 0", "call 0 16"))
    with_keys = streamed("call 0 id type name 0", "call 0 16")
    for each in with_keys["turn/call"]["streamed"].values():
        each.update(ids=[], ends=[])
    assert judge(with_keys, reference(before)).verdict == "pass"  # earlier proofs have neither
    assert judge(streamed("call 0 id type name 0", "call 0 16"), reference(before)).verdict == "pass"
    later = streamed("", "call 0 id type name 16")
    assert judge(later).verdict == "pass"
    (finding,) = judge(later, reference(before)).findings
    assert (finding.at, finding.verdict) == ("turn/call", "changed")
    assert finding.text.startswith("the streamed text is the same, but in different pieces, compared with small:1")
    assert judge(later, reference(before), tokenizer="t2").verdict == "pass"


@pytest.mark.slow
def test_a_template_may_refuse_what_it_does_not_take() -> None:
    answers = good()
    answers["developer-first"] = {"refused": "no such role"}
    assert judge(answers).verdict == "pass"
    assert judge(answers, reference(judge(good()))).verdict == "changed"
    answers["question"] = {"refused": "no such role"}
    assert judge(answers).verdict == "fail"


@pytest.mark.slow
@pytest.mark.parametrize("is_published", [True, False])
def test_a_template_that_breaks_fails_whoever_published_it(is_published: bool) -> None:
    answers = good()
    answers["developer-first"] = {"refused": "'nested_arguments' is undefined", "error": "UndefinedError", "line": 12}
    judgement = judge(answers, is_published=is_published)
    (finding,) = judgement.findings
    assert (judgement.verdict, judgement.counts["limits"], finding.check) == ("fail", 0, "template")
    wanted = "the template breaks: line 12 of the template: UndefinedError: 'nested_arguments' is undefined"
    assert finding.text == wanted
    refused = {"refused": "no such role", "error": "TemplateError", "line": 3}
    answers["developer-first"] = refused  # what `raise_exception` raises
    assert judge(answers, is_published=is_published).verdict == "pass"


@pytest.mark.slow
def test_a_conversation_longer_than_the_context_is_no_fault_of_the_template() -> None:
    refused = {"refused": "This model's maximum context length is 4096 tokens. However, your prompt contains 4097"}
    answers = good()
    answers["question"] = refused
    judgement = judge(answers)
    assert (judgement.verdict, judgement.counts["too_long"]) == ("pass", 1)
    assert judge(answers, reference(judgement)).verdict == "pass"
    assert judge(answers, reference(judge(good()))).verdict == "changed"
    nothing = judge(dict.fromkeys(answers, refused))
    assert nothing.verdict == "unclear"
    assert "longer than the context that the recipe gives" in nothing.findings[0].text


def test_a_release_that_cannot_parse_is_unclear() -> None:
    answers = good()
    for question in QUESTIONS:
        if question.kind != "prompt":
            answers[question.name] = {"missing": "/v1/chat/completions/derender"}
    judgement = judge(answers)
    assert judgement.verdict == "unclear"
    assert judgement.counts["outputs"] == 0
    assert judgement.counts["conversations"] == len(conversations.conversations())


# The properties of prompts and messages: what is broken is named, and nothing is found where nothing is broken.


def broken(source: str) -> set[str]:
    """The names of all properties that a template breaks."""
    texts = rendering.prompts(source)
    return {
        check
        for each in conversations.conversations()
        for check, _ in (
            *properties.of_prompt(each, texts[each.name], rendering.style(source)),
            *properties.of_prompts(each, texts, rendering.style(source)),
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
            for check, _ in properties.of_prompts(
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


def test_a_refusal_is_one_difference_whatever_was_there() -> None:
    refusal = "refused: 'nested' is undefined"
    assert {
        properties.text_difference(before, refusal) for before in ("call: weather {}", "content: x", "y" * 999)
    } == {refusal}
    assert properties.text_difference("refused: a", "refused: b") != "refused: b"


def test_a_difference_is_shown_where_it_begins() -> None:
    before, now = "a\n" * 500 + "Bern", "a\n" * 500 + "Genf"
    assert properties.side_by_side(before, now) == "  before: 'Bern'\n  now:    'Genf'"


# Limits of templates that others publish: told, and no fault of the image, as long as most of a kind holds.

TEMPLATE_LIMITS_QUESTIONS = conversations.questions("hermes", "qwen3")
PROMPTS = {each.name: each for each in TEMPLATE_LIMITS_QUESTIONS if each.kind == "prompt"}


def judged(changes: dict[str, dict[str, Any]], *, is_published: bool) -> Judgement:
    answers = rendering.answers(TEMPLATE_LIMITS_QUESTIONS, rendering.template()) | changes
    return judging.judge_answers(
        TEMPLATE_LIMITS_QUESTIONS, answers, tokenizer="t1", style=Style(), is_published=is_published
    )


def refused(*names: str) -> dict[str, dict[str, Any]]:
    return {name: {"refused": "only one call at once"} for name in names}


@pytest.mark.slow
def test_what_a_published_template_refuses_is_a_limit() -> None:
    changes = refused("parallel-calls", "three-calls")
    assert judged(changes, is_published=False).verdict == "fail"
    judgement = judged(changes, is_published=True)
    assert judgement.verdict == "pass"
    assert (judgement.counts["limits"], judgement.counts["failed"]) == (2, 0)
    (finding,) = judgement.findings
    assert (finding.verdict, finding.at) == ("pass", f"2 of {len(PROMPTS)} conversations")


def test_a_template_that_does_not_take_what_is_asked_of_it_fails() -> None:
    with_calls = [
        each.name
        for each in conversations.conversations()
        if any(turn.calls for turn in each.turns) and not each.may_refuse
    ]
    judgement = judged(refused(*with_calls), is_published=True)
    assert judgement.verdict == "fail"
    assert judgement.counts["failed"] == len(with_calls)


@pytest.mark.slow
def test_the_manner_of_a_template_is_its_makers() -> None:
    source = rendering.template().replace("<|im_start|>user\n", "<|im_start|>user")
    changes = {name: rendering.prompt(source, each.body["request"]) for name, each in PROMPTS.items()}
    assert judged(changes, is_published=False).verdict == "fail"
    judgement = judged(changes, is_published=True)
    assert (judgement.verdict, judgement.counts["failed"]) == ("pass", 0)
    assert judgement.counts["limits"] >= len(PROMPTS)


def test_a_limit_beside_a_fault_is_still_a_limit() -> None:
    read = {"content": "other", "reasoning": "", "calls": []}
    wrong = {"text": "The tide turns at six.", "whole": read, "streamed": {"chunks": read}}
    judgement = judged({**refused("parallel-calls"), "turn/answer": wrong}, is_published=True)
    assert judgement.verdict == "fail"
    # The fault comes first.
    assert [(finding.at, finding.verdict) for finding in judgement.findings][-1] == ("parallel-calls", "pass")


def test_no_answer_is_no_limit() -> None:
    judgement = judged({"question": {"failed": "TimeoutError: "}}, is_published=True)
    assert (judgement.verdict, judgement.counts["limits"]) == ("fail", 0)


@pytest.mark.parametrize(
    ("template", "is_published"),
    [
        ("", True),
        ("examples/tool_chat_template_llama3.1_json.jinja", True),
        ("/vllm-workspace/examples/tool_chat_template_mistral.jinja", True),
        ("qwen3.5-enhanced.jinja", False),
        ("/templates/own.jinja", False),
    ],
)
def test_whose_template_it_is(template: str, is_published: bool) -> None:
    assert prove._is_published(template) == is_published


TRIP = Trip("weather", "Look", calls=(Call("weather", {"city": "Bern", "days": None}),))


def question(trip: Trip = TRIP) -> Question:
    return Question(f"turn/{trip.name}", trip, {})


def read(answer: dict[str, Any], trip: Trip = TRIP) -> judging.Reading:
    return judging.read_turn(question(trip), trip, answer)


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
    assert [name for name, _ in judging.of_message(expected, message)] == ([check] if check else [])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1.0, True), (1, True, False), ({"a": [1]}, {"a": [1.5]}, False), (2**53 + 1, 2**53, False)],
)
def test_json_values_are_not_pythons(one: Any, other: Any, same: bool) -> None:
    assert judging.same_json(one, other) is same


# The verdict on all turns of a model.


def judged_trip(changes: dict[str, dict[str, Any]], *, is_known: bool = False) -> dict[str, list[str]]:
    """The texts of the findings by verdict, where the turns that ``changes`` names are answered so."""
    readings = []
    for each in conversations.questions("minimax_m2", "minimax_m2"):
        if isinstance(each.subject, Trip):
            given = changes.get(each.subject.name, rendering.turn(each.subject))
            readings.append(judging.read_turn(each, each.subject, given))
    found: dict[str, list[str]] = {}
    for finding in judging.judge_readings(readings, is_known=is_known, tool_parser=True):
        found.setdefault(finding.verdict, []).append(f"{finding.at} {finding.text}")
    return found


def all_calls(**changes: Any) -> dict[str, dict[str, Any]]:
    trips = [trip for trip in conversations.trips() if trip.calls and not trip.reasoning]
    return {trip.name: {**rendering.turn(trip), **changes} for trip in trips}


NOTHING = {"content": "", "reasoning": "", "calls": []}


def test_a_parser_of_any_name_is_proven() -> None:
    assert judged_trip({}) == {}


def test_what_it_misreads_of_its_template_fails_and_what_is_hard_to_read_is_a_limit() -> None:
    calls = all_calls(whole=NOTHING, streamed={"chunks": NOTHING})
    wrong = judged_trip({name: calls[name] for name in ("call", "nothing")})
    assert wrong.keys() == {"fail", "pass"}
    assert all(text.startswith("turn/call ") for text in wrong["fail"])
    assert all(text.startswith("turn/nothing ") for text in wrong["pass"])


def test_a_template_whose_calls_another_parser_reads_proves_nothing() -> None:
    (text,) = judged_trip(all_calls(whole=NOTHING, streamed={"chunks": NOTHING}))["unclear"]
    assert "tool calls are not proven: " in text
    assert "fail" in judged_trip(all_calls(whole=NOTHING, streamed={"chunks": NOTHING}), is_known=True)


def test_a_template_that_writes_no_calls_proves_nothing() -> None:
    (text,) = judged_trip(all_calls(text=""))["unclear"]
    assert text == " tool calls are not proven: the template does not write each call of weather"
    (text,) = judged_trip({name: {"refused": "no tools"} for name in all_calls()})["unclear"]
    assert text == " tool calls are not proven: the template refuses it: no tools"


def test_a_template_that_writes_no_thought_proves_nothing_though_it_refuses_one() -> None:
    thoughts = [trip for trip in conversations.trips() if trip.reasoning]
    unwritten = {trip.name: {**rendering.turn(trip), "text": trip.content} for trip in thoughts if not trip.calls}
    refused = {trip.name: {"refused": "nothing is written"} for trip in thoughts if trip.calls or not trip.content}
    (text,) = judged_trip(unwritten | refused)["unclear"]
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
