"""Planted faults put to a real front end: all templates in one start, each parser in a fork of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from builder.base.events import ignore
from builder.lab.prove import conversations, front_end, judging
from builder.lab.prove.judging import Reference
from tests.lab.prove import faults, rendering

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client import Endpoint
    from builder.lab.prove.conversations import Question
    from builder.lab.prove.front_end import Setup
    from builder.lab.prove.judging import Judgement


UNCHANGED = "unchanged"
_PLUGIN = PurePosixPath("/tmp/planted.py")
_TEMPLATE = PurePosixPath("/tmp/hermes.jinja")
# Enough to show each fault: every other conversation costs each of them as many requests.
_CONVERSATIONS = {
    *("question", "system-and-question", "turns-without-system", "developer-first", "one-text", "one-part", "one-tool"),
    *("call", "call-without-content", "call-with-content", "parallel-calls", "empty-arguments", "nested-arguments"),
    *("unicode-arguments", "earlier-reasoning", "open-reasoning-before-a-call"),
}
_TURNS = {"answer", "call", "parallel-calls", "empty-arguments", "reasoning-and-answer", "reasoning-and-call"}


def judgements(endpoint: Endpoint, image: str, labels: Mapping[str, str]) -> dict[str, tuple[Judgement, Judgement]]:
    """The judgement on each fault, and on none: by properties alone, and compared with what was before."""
    run = front_end.ask_front_end(endpoint, image, [_templates(), *map(_parser, faults.PARSERS)], labels, ignore)
    assert not run.failure, run.failure
    by_template, *by_parser = run.setups
    assert by_template.answers is not None, by_template.log
    answers = {
        name: {question.name: by_template.answers[f"{name}/{question.name}"] for question in _questions()}
        for name in _sources()
    }
    result = {name: _judged(_questions(), each, answers[UNCHANGED]) for name, each in answers.items()}
    for fault, setup in zip(faults.PARSERS, by_parser, strict=True):
        assert setup.answers is not None, setup.log
        result[fault.name] = _judged(_turns(), setup.answers, {})
    return result


def _judged(
    questions: tuple[Question, ...], answers: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[Judgement, Judgement]:
    def judge(given: Mapping[str, Any], reference: Reference | None = None) -> Judgement:
        return judging.judge_answers(
            questions, given, tokenizer="stand-in", style=rendering.style(rendering.template()), reference=reference
        )

    alone = judge(answers)
    if not before:
        return alone, alone
    earlier = judge(before)
    return alone, judge(answers, Reference("small:1", earlier.goldens, earlier.texts))


def _sources() -> dict[str, str]:
    source = rendering.template()
    assert all(fault.old in source for fault in faults.TEMPLATES)
    return {
        UNCHANGED: source,
        **{fault.name: source.replace(fault.old, fault.new) for fault in faults.TEMPLATES},
    }


def _questions() -> tuple[Question, ...]:
    return tuple(each for each in conversations.questions("hermes", "qwen3") if each.name in _CONVERSATIONS) + _turns()


def _turns() -> tuple[Question, ...]:
    questions = conversations.questions("hermes", "qwen3")
    return tuple(each for each in questions if each.kind == "turn" and each.name.partition("/")[2] in _TURNS)


def _templates() -> Setup:
    questions = [
        replace(question, name=f"{name}/{question.name}", body=_with_template(question.body, source))
        for name, source in _sources().items()
        for question in _questions()
    ]
    return _setup(tuple(questions), "hermes", "--trust-request-chat-template")


def _with_template(body: dict[str, Any], source: str) -> dict[str, Any]:
    return {
        key: {**value, "chat_template": source} if isinstance(value, dict) else value for key, value in body.items()
    }


def _parser(fault: faults.ParserFault) -> Setup:
    setup = _setup(_turns(), fault.parser, "--tool-parser-plugin", str(_PLUGIN))
    place = PurePosixPath(f"/tmp/planted_{abs(hash(fault.name))}.py")
    options = tuple(str(place) if option == str(_PLUGIN) else option for option in setup.options)
    return replace(setup, options=options, mounted={**setup.mounted, place: fault.plugin.encode()})


def _setup(questions: tuple[Question, ...], parser: str, *options: str) -> Setup:
    own = ("--chat-template", str(_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", parser)
    return front_end.Setup(
        model="Org/Model-1B",
        files=front_end.files(),
        options=(*own, "--reasoning-parser", "qwen3", *options),
        environment={},
        template=str(_TEMPLATE),
        mounted={_TEMPLATE: rendering.template().encode()},
        questions=questions,
    )
