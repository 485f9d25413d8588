"""The verdict: from properties, and from what was before."""

from __future__ import annotations

from typing import Any

import pytest

from builder.lab.prove import conversations, judging
from builder.lab.prove.judging import Judgement, Reference
from tests.proving import rendering

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


def test_all_is_well() -> None:
    judgement = judge(good())
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert judgement.counts["conversations"] + judgement.counts["outputs"] == len(QUESTIONS)
    assert len(judgement.goldens) == len(QUESTIONS) + 1


def test_the_same_again_is_not_changed() -> None:
    again = judge(good(), reference(judge(good())))
    assert (again.verdict, again.counts["compared"]) == ("pass", len(QUESTIONS))


def test_a_broken_property_fails_whatever_was_before() -> None:
    answers = good()
    answers["question"] = {"text": "<|im_start|>assistant", "ids": [1]}
    judgement = judge(answers, reference(judge(good())))
    assert judgement.verdict == "fail"
    assert ("content", "question") in {(finding.check, finding.at) for finding in judgement.findings}


def test_another_prompt_is_changed_and_shown_side_by_side() -> None:
    answers = good()
    text = answers["question"]["text"].replace("How many", "A word. How many")
    answers["question"] = {"text": text, "ids": [1, 2, 3]}
    judgement = judge(answers, reference(judge(good())))
    (finding,) = judgement.findings
    assert (judgement.verdict, finding.verdict, finding.at) == ("changed", "changed", "question")
    first, before, now = finding.text.splitlines()
    assert first == "'A word. ' more, compared with small:1"
    assert before.startswith("  before: 'How many")
    assert now.startswith("  now:    'A word. How many")


def test_the_same_difference_in_all_prompts_is_one_finding() -> None:
    answers = good()
    prompts = [question.name for question in QUESTIONS if question.kind == "prompt"]
    for name in prompts:
        answers[name] = {"text": answers[name]["text"] + "\n", "ids": [1]}
    judgement = judge(answers, reference(judge(good())))
    assert (judgement.verdict, judgement.counts["changed"]) == ("changed", len(prompts))
    (finding,) = judgement.findings
    assert finding.at == f"{len(prompts)} of {len(prompts)} conversations"
    assert finding.text.startswith("one newline more at the end, compared with small:1\n  first in question\n")


def test_without_the_texts_of_before_it_still_shows() -> None:
    answers = good()
    answers["question"] = {**answers["question"], "ids": [1]}
    before = judge(good())
    judgement = judge(answers, Reference("small:1", before.goldens))
    assert judgement.verdict == "changed"
    assert "not stored on this machine" in judgement.findings[0].text


def test_another_tokenizer_is_compared_by_text() -> None:
    answers = good()
    for answer in answers.values():
        if "ids" in answer:
            answer["ids"] = [*answer["ids"], 0]
    assert judge(answers, reference(judge(good())), tokenizer="t2").verdict == "pass"
    assert judge(answers, reference(judge(good()))).verdict == "changed"


def test_a_date_in_the_prompt_is_not_a_change() -> None:
    def on(day: str) -> Judgement:
        answers = good()
        text = f"Today is {day}.\n{answers['question']['text']}"
        answers["question"] = {"text": text, "ids": list(text.encode())}
        return judge(answers, dates=(day,))

    before = on("22 Nov 2026")
    assert before.goldens == on("23 Nov 2026").goldens


def test_an_output_that_may_be_read_in_any_way_may_change_only() -> None:
    answers = good()
    answers["hermes/call-cut-off"] = {"whole": {"content": "<tool_call>", "reasoning": "", "calls": []}, "streamed": []}
    assert judge(answers).verdict == "pass"
    assert judge(answers, reference(judge(good()))).verdict == "changed"


def test_a_template_may_refuse_what_it_does_not_take() -> None:
    answers = good()
    answers["developer-first"] = {"refused": "no such role"}
    assert judge(answers).verdict == "pass"
    assert judge(answers, reference(judge(good()))).verdict == "changed"
    answers["question"] = {"refused": "no such role"}
    assert judge(answers).verdict == "fail"


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
