"""The verdict of a proof: properties that hold for every model, and goldens of the number before.

Pure: it compares what was asked with what was answered, and with what was answered before.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.evidence.record import Finding
from builder.proving import differences, properties, template_limits
from builder.proving.conversations import Conversation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from builder.evidence.record import Verdict
    from builder.proving.conversations import ParsedMessage, Question
    from builder.proving.properties import Style

    Answers = Mapping[str, Mapping[str, Any]]

TOKENIZER = "tokenizer"
_DIGITS = 16
_NO_STREAM = "derender failed"
# The exception of ``raise_exception``, by which the author of a template refuses what it is not for.
_REFUSAL = "TemplateError"
# vLLM's words for a prompt that leaves no room in `--max-model-len`.
_TOO_LONG = "maximum context length"


@dataclass(frozen=True)
class Reference:
    """The behaviour to compare with: the goldens of ``image``, and their texts where this machine has them."""

    image: str
    goldens: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """The result of one model's proof. ``texts`` are what the goldens are made of, for the next one to be compared
    with."""

    verdict: Verdict
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]
    goldens: Mapping[str, str]
    texts: Mapping[str, str]


@dataclass
class _Tally:
    findings: list[Finding] = field(default_factory=list)
    properties: int = 0
    goldens: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def find(self, question: Question, verdict: Verdict, broken: Iterator[tuple[str, str]]) -> None:
        self.properties += 1
        self.findings += [Finding(check, question.name, verdict, text) for check, text in broken]


def judge(
    questions: Sequence[Question],
    answers: Answers,
    *,
    tokenizer: str,
    style: Style,
    reference: Reference | None = None,
    dates: Collection[str] = (),
    is_published: bool = False,
) -> Judgement:
    """Judges the answers to ``questions``. ``tokenizer`` tells it from others; ``style`` is the manner of the template;
    ``dates`` are those of today, which templates write into prompts; ``is_published`` for a template of others, whose
    limits are told and fail nothing."""
    tally = _Tally(goldens={TOKENIZER: tokenizer})
    prompts = {
        question.name: answers[question.name]["text"]
        for question in questions
        if question.kind == "prompt" and "text" in answers.get(question.name, {})
    }
    for question in questions:
        answer = answers.get(question.name) or {"failed": "it was not answered"}
        if "missing" in answer:
            continue
        if _is_too_long(answer):  # no fault; but one that was not so before has changed
            _keep(tally, question, "longer than the context", "too long")
        elif "failed" in answer:
            tally.find(question, "fail", iter([("answer", f"the front end broke off: {answer['failed']}")]))
        elif _is_fault(answer):
            _keep(tally, question, f"{differences.REFUSED}{answer['refused']}", "refused")
            line = f"line {answer['line']} of the template: " if answer.get("line") else ""
            what = f"the template breaks: {line}{answer['error']}: {answer['refused']}"
            tally.find(question, "fail", iter([("template", what)]))
        elif isinstance(question.subject, Conversation) and question.kind == "prompt":
            _judge_prompt(tally, question, question.subject, answer, prompts, style, dates=dates)
        else:
            _judge_message(tally, question, answer, is_known=style.names_roles)
    unread = sum("missing" in answer for answer in answers.values())
    if unread:
        text = f"{unread} outputs were not parsed back: this release of vLLM has nothing that does it without a GPU"
        tally.findings.append(Finding("parsers", "", "unclear", text))
    too_long = sum(_is_too_long(answer) for answer in answers.values())
    if too_long and not prompts:
        text = f"all {too_long} questions are longer than the context that the recipe gives the model"
        tally.findings.append(Finding("context", "", "unclear", text))
    changed = list(_changes(tally, reference)) if reference else []
    broken = template_limits.told(questions, tally.findings) if is_published else tally.findings
    # Limits, which pass, come last.
    findings = sorted((*broken, *changed), key=lambda finding: finding.verdict == "pass")
    verdicts = [finding.verdict for finding in findings]
    counts = {
        "conversations": len(prompts),
        "outputs": sum(
            question.kind != "prompt" and "whole" in answers.get(question.name, {}) for question in questions
        ),
        "too_long": too_long,
        "properties": tally.properties,
        "compared": len(_comparable(tally, reference)) if reference else 0,
        "failed": verdicts.count("fail"),
        "changed": verdicts.count("changed"),
        "limits": verdicts.count("pass"),
    }
    return Judgement(worst(verdicts), counts, tuple(_grouped(findings, questions)), tally.goldens, tally.texts)


def _is_too_long(answer: Mapping[str, Any]) -> bool:
    return _TOO_LONG in answer.get("refused", "")


def _is_fault(answer: Mapping[str, Any]) -> bool:
    """True where an exception that its author did not raise kept the template from its work."""
    return bool(answer.get("error", _REFUSAL) != _REFUSAL)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of several: the one that asks for attention first."""
    order: tuple[Verdict, ...] = ("fail", "changed", "unclear")
    return next((verdict for verdict in order if verdict in verdicts), "pass")


def _judge_prompt(
    tally: _Tally,
    question: Question,
    conversation: Conversation,
    answer: Mapping[str, Any],
    prompts: Mapping[str, str],
    style: Style,
    *,
    dates: Collection[str],
) -> None:
    if "refused" in answer:
        _keep(tally, question, f"refused: {answer['refused']}", "refused")
        if not conversation.may_refuse:
            tally.find(question, "fail", iter([("refused", f"the template refuses it: {answer['refused']}")]))
        return
    text = answer["text"]
    tally.find(question, "fail", properties.of_prompt(conversation, text, style))
    tally.find(question, "fail", properties.of_prompts(conversation, prompts, style))
    settled = _without(text, dates)
    # A prompt with today's date in it has other ids tomorrow.
    _keep(tally, question, settled, json.dumps(answer["ids"]) if settled == text else settled)


def _judge_message(tally: _Tally, question: Question, answer: Mapping[str, Any], *, is_known: bool) -> None:
    expected = question.expected
    # A template of an unknown family may write the calls of earlier turns otherwise than the model does.
    verdict: Verdict = "fail" if is_known or question.kind == "output" else "unclear"
    if "refused" in answer:
        _keep(tally, question, f"refused: {answer['refused']}", "refused")
        if expected:
            tally.find(question, verdict, iter([("refused", f"it cannot be parsed: {answer['refused']}")]))
        return
    whole = properties.parsed(answer["whole"])
    _keep(tally, question, _shown(whole), json.dumps(_plain(whole), sort_keys=True))
    if expected is None:
        return
    tally.find(question, verdict, properties.of_message(expected, whole))
    streamed = [properties.parsed(each) for each in answer["streamed"] if "refused" not in each]
    tally.find(question, verdict, properties.of_streamed(whole, streamed))
    broken = [each["refused"] for each in answer["streamed"] if _NO_STREAM in each.get("refused", "")]
    if broken:
        tally.find(question, verdict, iter([("streamed", f"in pieces it cannot be parsed: {broken[0]}")]))


def _keep(tally: _Tally, question: Question, text: str, content: str) -> None:
    key = f"{question.name}#{question.digest}"
    tally.goldens[key] = hashlib.sha256(content.encode(errors="replace")).hexdigest()[:_DIGITS]
    tally.texts[key] = text


def _changes(tally: _Tally, reference: Reference) -> Iterator[Finding]:
    """The answers that are others than those of the number before."""
    same_tokens = reference.goldens.get(TOKENIZER) == tally.goldens[TOKENIZER]
    for key in _comparable(tally, reference):
        before, now = reference.texts.get(key), tally.texts[key]
        if same_tokens and reference.goldens[key] == tally.goldens[key]:
            continue
        if before is None:
            text = "it changed; the previous text is not stored on this machine"
        elif before != now:
            text = differences.difference(before, now)
        elif same_tokens:
            text = "the text is the same, the tokens are others"
        else:
            continue
        around = 120 if text else 400
        shown = "" if before is None or before == now else f"\n{differences.side_by_side(before, now, around)}"
        what = f"{text or 'it changed'}, compared with {reference.image}"
        yield Finding("golden", key.partition("#")[0], "changed", f"{what}{shown}")


def _grouped(findings: Sequence[Finding], questions: Sequence[Question]) -> Iterator[Finding]:
    """The findings, those whose first lines say the same as one: with their number, and what the first one shows."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.check, each.verdict, each.text.partition("\n")[0]), []).append(each)
    prompts = {question.name for question in questions if question.kind == "prompt"}
    for group in groups.values():
        first, count = group[0], len(group)
        if count == 1:
            yield first
            continue
        head, *below = first.text.splitlines()
        are_prompts = all(each.at in prompts for each in group)
        of_all = f"{len(prompts)} conversations" if are_prompts else f"{len(questions)} questions"
        yield replace(first, at=f"{count} of {of_all}", text="\n".join((head, f"  first in {first.at}", *below)))


def _comparable(tally: _Tally, reference: Reference) -> list[str]:
    """The keys of the answers that can be compared: with another tokenizer, those whose texts are there."""
    if reference.goldens.get(TOKENIZER) == tally.goldens[TOKENIZER]:
        return [key for key in tally.texts if key in reference.goldens]
    return [key for key in tally.texts if key in reference.texts]


def _without(text: str, dates: Collection[str]) -> str:
    for date in dates:
        text = text.replace(date, "TODAY")
    return text


def _plain(message: ParsedMessage) -> list[Any]:
    return [message.content, message.reasoning, message.calls]


def _shown(message: ParsedMessage) -> str:
    lines = [f"reasoning: {message.reasoning}"] if message.reasoning else []
    lines += [f"content: {message.content}"] if message.content else []
    lines += [f"call: {name} {json.dumps(arguments, ensure_ascii=False)}" for name, arguments in message.calls]
    return "\n".join(lines)
