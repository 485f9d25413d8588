"""Limits of templates that others publish: told, and no fault of the image, as long as most of a kind holds."""

from __future__ import annotations

from typing import Any

import pytest

from builder.lab.prove import conversations, judging, prove
from builder.lab.prove.judging import Judgement, Style
from tests.proving import rendering

QUESTIONS = conversations.questions("hermes", "qwen3")
PROMPTS = {each.name: each for each in QUESTIONS if each.kind == "prompt"}


def judged(changes: dict[str, dict[str, Any]], *, is_published: bool) -> Judgement:
    answers = rendering.answers(QUESTIONS, rendering.template()) | changes
    return judging.judge_answers(QUESTIONS, answers, tokenizer="t1", style=Style(), is_published=is_published)


def refused(*names: str) -> dict[str, dict[str, Any]]:
    return {name: {"refused": "only one call at once"} for name in names}


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


def test_the_manner_of_a_template_is_its_makers() -> None:
    source = rendering.template().replace("<|im_start|>user\n", "<|im_start|>user")
    changes = {name: rendering.prompt(source, each.body["request"]) for name, each in PROMPTS.items()}
    assert judged(changes, is_published=False).verdict == "fail"
    judgement = judged(changes, is_published=True)
    assert (judgement.verdict, judgement.counts["failed"]) == ("pass", 0)
    assert judgement.counts["limits"] >= len(PROMPTS)


def test_a_limit_beside_a_fault_is_still_a_limit() -> None:
    (output, *_) = [each.name for each in QUESTIONS if each.kind == "output" and each.expected]
    wrong = {"whole": {"content": "other", "reasoning": "", "calls": []}, "streamed": []}
    judgement = judged({**refused("parallel-calls"), output: wrong}, is_published=True)
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
