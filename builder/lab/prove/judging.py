"""Judges a proof: compares the answers of an image with general properties and with earlier answers.

This module reads only texts, and knows no specific template or parser.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from builder.base.values import dataclass, field, replace
from builder.evidence import run_record
from builder.evidence.run_record import Finding, Verdict
from builder.lab.prove.conversations import Conversation, ParsedMessage, Question, Trip
from builder.lab.prove.properties import (
    REFUSED,
    Broken,
    cut,
    flatten,
    leaves,
    of_prompt,
    of_prompts,
    side_by_side,
    text_difference,
)
from builder.lock.model import ImageName

if TYPE_CHECKING:
    from collections.abc import Collection

    from builder.base.project import Project
    from builder.lab.prove.properties import Style
    from builder.lock.model import Lock

    Answers = Mapping[str, Mapping[str, Any]]


TOKENIZER = "tokenizer"
# The exception of ``raise_exception``: with it, the author of a template refuses unsupported requests.
_REFUSAL = "TemplateError"
# A part of vLLM's message if a prompt leaves no room in `--max-model-len`.
_TOO_LONG = "maximum context length"


@dataclass(frozen=True)
class Reference:
    image: str
    goldens: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """The result of one model's proof. ``goldens`` are digests of the answers, ``texts`` their texts."""

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

    def find(self, question: Question, verdict: Verdict, *broken: Broken | tuple[tuple[str, str]]) -> None:
        for each in broken:
            self.properties += 1
            self.findings += [Finding(check, question.name, verdict, text) for check, text in each]

    def keep(self, question: Question, text: str, content: str) -> None:
        key = f"{question.name}#{question.digest}"
        self.goldens[key] = hashlib.sha256(content.encode(errors="replace")).hexdigest()[:16]
        self.texts[key] = text


def judge_answers(
    questions: Sequence[Question],
    answers: Answers,
    *,
    tokenizer: str,
    style: Style,
    reference: Reference | None = None,
    dates: Collection[str] = (),
    is_published: bool = False,
) -> Judgement:
    """Judges the answers to ``questions``. ``dates`` are the forms in which templates write the current date into
    prompts. If others published the template (``is_published``), its limits are reported but fail nothing."""
    tally = _Tally(goldens={TOKENIZER: tokenizer})
    prompts = {
        question.name: answers[question.name]["text"]
        for question in questions
        if question.kind == "prompt" and "text" in answers.get(question.name, {})
    }
    readings: list[Reading] = []
    for question in questions:
        answer = answers.get(question.name) or {"failed": "the question was not answered"}
        if "missing" not in answer and not _is_unusual(tally, question, answer):
            if isinstance(question.subject, Conversation):
                _judge_prompt(tally, question, question.subject, answer, prompts, style, dates=dates)
            else:
                _keep_turn(tally, question, answer)
                readings.append(read_turn(question, question.subject, answer))
    tally.properties += len(readings)
    has_tools = any(each.trip.calls for each in readings)
    of_turns = [*judge_readings(readings, is_known=style.names_roles, tool_parser=has_tools)]
    if unread := sum("missing" in answer for answer in answers.values()):
        text = f"outputs that were not parsed back: {unread}; this release of vLLM cannot parse them without a GPU"
        tally.findings.append(Finding("parsers", "", "unclear", text))
    too_long = sum(_TOO_LONG in answer.get("refused", "") for answer in answers.values())
    if too_long and not prompts:
        text = f"each question ({too_long} in all) is longer than the context that the recipe gives the model"
        tally.findings.append(Finding("context", "", "unclear", text))
    broken = tell_limits(questions, tally.findings) if is_published else tally.findings
    changed = _changes(tally, reference) if reference else ()
    # Limits have the verdict `pass` and come last.
    findings = sorted((*broken, *of_turns, *changed), key=lambda finding: finding.verdict == "pass")
    verdicts = [finding.verdict for finding in findings]
    counts = {
        "conversations": len(prompts),
        "outputs": len(readings),
        "too_long": too_long,
        "properties": tally.properties,
        "compared": len(_comparable(tally, reference)) if reference else 0,
        "failed": verdicts.count("fail"),
        "changed": verdicts.count("changed"),
        "limits": verdicts.count("pass"),
    }
    return Judgement(worst(verdicts), counts, tuple(_grouped(findings, questions)), tally.goldens, tally.texts)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The most urgent verdict of several."""
    order: tuple[Verdict, ...] = ("fail", "changed", "unclear")
    return next((verdict for verdict in order if verdict in verdicts), "pass")


def _is_unusual(tally: _Tally, question: Question, answer: Mapping[str, Any]) -> bool:
    """True for an answer that no template or parser intended; the answer is then judged here."""
    refused = answer.get("refused", "")
    if _TOO_LONG in refused:  # no fault, but reported as a change if the prompt fitted before
        tally.keep(question, "longer than the context", "too long")
    elif "failed" in answer:
        tally.find(question, "fail", (("answer", f"the front end stopped early: {answer['failed']}"),))
    elif answer.get("error", _REFUSAL) != _REFUSAL:
        tally.keep(question, f"{REFUSED}{refused}", "refused")
        line = f"line {answer['line']} of the template: " if answer.get("line") else ""
        tally.find(question, "fail", (("template", f"the template breaks: {line}{answer['error']}: {refused}"),))
    else:
        return False
    return True


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
        tally.keep(question, f"{REFUSED}{answer['refused']}", "refused")
        if not conversation.may_refuse:
            tally.find(question, "fail", (("refused", f"the template refuses it: {answer['refused']}"),))
        return
    settled = text = answer["text"]
    tally.find(question, "fail", of_prompt(conversation, text, style), of_prompts(conversation, prompts, style))
    for date in dates:
        settled = settled.replace(date, "TODAY")
    # A prompt with the current date has different token ids tomorrow.
    tally.keep(question, settled, json.dumps(answer["ids"]) if settled == text else settled)


def _keep_turn(tally: _Tally, question: Question, answer: Mapping[str, Any]) -> None:
    """Stores how the parsers read a turn, with white space: whole, in streams if these differ, and the pieces, ids and
    ends of streams."""
    whole = answer.get("whole", answer)
    if "refused" in whole:
        tally.keep(question, f"{REFUSED}{whole['refused']}", "refused")
        return
    read = _read_lines(whole)
    streams = {kind: _read_lines(each) for kind, each in answer["streamed"].items()}
    others = [f"as a stream of {kind}:\n{each}" for kind, each in streams.items() if each != read]
    text = "\n".join([read, *others])
    pieces = {kind: each.get("pieces") for kind, each in answer["streamed"].items()}
    more = {
        kind: [each["ids"], each["ends"]]
        for kind, each in answer["streamed"].items()
        if each.get("ids") or each.get("ends")
    }
    tally.keep(question, text, json.dumps([text, pieces, *([more] if more else [])]))


def _read_lines(answer: Mapping[str, Any]) -> str:
    if "refused" in answer:
        return f"{REFUSED}{answer['refused']}"
    lines = [f"{part}: {answer[part]}" for part in ("reasoning", "content") if answer[part]]
    calls = ((name, json.dumps(given, ensure_ascii=False)) for name, given in parsed(answer).calls)
    return "\n".join([*lines, *(f"call: {name} {given}" for name, given in calls)])


def _changes(tally: _Tally, reference: Reference) -> Iterator[Finding]:
    same_tokens = reference.goldens.get(TOKENIZER) == tally.goldens[TOKENIZER]
    for key in _comparable(tally, reference):
        before, now, shown = reference.texts.get(key), tally.texts[key], ""
        if (same_tokens and reference.goldens[key] == tally.goldens[key]) or (before == now and not same_tokens):
            continue
        if before is None:
            text = "it changed; the previous text is not stored on this machine"
        elif before == now:
            is_turn = key.startswith("turn/")
            text = (
                "the streamed text is the same, but in different pieces"
                if is_turn
                else "the text is the same, but the tokens differ"
            )
        else:
            text = text_difference(before, now)
            shown = f"\n{side_by_side(before, now, 120 if text else 400)}"
        what = f"{text or 'it changed'}, compared with {reference.image}"
        yield Finding("golden", key.partition("#")[0], "changed", f"{what}{shown}")


def _comparable(tally: _Tally, reference: Reference) -> list[str]:
    """The comparable answers. With a different tokenizer, only answers with a stored text are comparable."""
    same_tokens = reference.goldens.get(TOKENIZER) == tally.goldens[TOKENIZER]
    before = reference.goldens if same_tokens else reference.texts
    return [key for key in tally.texts if key in before]


def _grouped(findings: Sequence[Finding], questions: Sequence[Question]) -> Iterator[Finding]:
    """The findings; findings with the same first line become one."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.check, each.verdict, each.text.partition("\n")[0]), []).append(each)
    prompts = {question.name for question in questions if question.kind == "prompt"}
    for group in groups.values():
        first, count = group[0], len(group)
        if count > 1:
            head, *below = first.text.splitlines()
            are_prompts = prompts.issuperset(each.at for each in group)
            of_all = f"{len(prompts)} conversations" if are_prompts else f"{len(questions)} questions"
            text = "\n".join((head, f"  first in {first.at}", *below))
            first = replace(first, at=f"{count} of {of_all}", text=text)
        yield first


def find_reference(project: Project, lock: Lock, repository: str, number: int | None, model: str) -> Reference | None:
    """The behaviour to compare with: the last passed or accepted proof of ``model`` on the highest number, at most
    ``number`` (None: no limit); otherwise on an image of the model's pairings."""
    numbers = sorted(lock.images[repository].numbers if repository in lock.images else (), reverse=True)
    names = [ImageName(repository, each) for each in numbers]
    if paired := lock.models.get(model):
        names += [each.image for each in (paired.pairing, *paired.previous)]
    for name in dict.fromkeys(names):
        if name.repository == repository and number and name.number > number:
            continue
        for run in reversed(run_record.look_for_runs(project, name).runs):
            is_proof = run.kind == "prove" and run.subject.model == model
            if is_proof and run.verdict in {"pass", "unclear"} and run.goldens:
                content = run_record.raw_answers(project, run.raw) if run.raw else None
                # The content matches the digest that the run records.
                return Reference(str(name), run.goldens, json.loads(content).get("texts", {}) if content else {})
    return None


# Limits of published templates are no fault of the image that serves the model. Most published templates drop a second
# system message or the text beside calls, or refuse several calls at once: their authors intend this. Such a limit is
# reported, but fails nothing, if at most half of the conversations of the kind break. If more break, the template does
# not support the kind. For example, a template without tools cannot support calls.

_BROKEN = frozenset({"fail", "unclear"})
# These are faults of any template: the front end does not answer, or the template breaks.
_NEVER = frozenset({"answer", "template"})
# The style of a template: its author trained the model with it.
_MANNER = frozenset(
    {
        *("white space", "delimiters", "format", "types", "required", "developer", "result", "generation"),
        *("thinking", "reasoning", "escaped"),
    }
)


def tell_limits(questions: Sequence[Question], findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings; limits get the verdict `pass`."""
    kinds = {question.name: kind for question in questions if (kind := _kind(question))}
    sizes = Counter(kinds.values())
    broken = {each.at for each in findings if each.verdict in _BROKEN and each.check not in _MANNER}
    counts = Counter(kinds[name] for name in broken if name in kinds)
    limited = {kind for kind in sizes if 2 * counts[kind] <= sizes[kind]}
    return tuple(
        replace(each, verdict="pass")
        if each.verdict in _BROKEN
        and (each.check in _MANNER or (each.check not in _NEVER and kinds.get(each.at) in limited))
        else each
        for each in findings
    )


def _kind(question: Question) -> str:
    """The kind of a conversation; empty for a turn: `judge_readings` judges the limits of turns."""
    if not isinstance(question.subject, Conversation):
        return ""
    if any(turn.calls for turn in question.subject.turns):
        return "calls"
    return "tools" if question.subject.tools else "plain"


# Round trips: turns that the template writes and the parsers read back.
#
# If the template's text lacks a part of the message, the template caused the difference; otherwise the parser did. This
# needs no knowledge of the parser's format.


@dataclass(frozen=True)
class Reading:
    """A turn. ``lost`` describes what the template leaves out, ``broken`` what the parsers misread. ``in_chunks``
    describes a misread stream of several tokens at once, if a stream of single tokens is read correctly."""

    question: Question
    trip: Trip
    lost: str = ""
    broken: tuple[tuple[str, str], ...] = ()
    in_chunks: str = ""


def read_turn(question: Question, trip: Trip, answer: Mapping[str, Any]) -> Reading:
    if "refused" in answer:
        return Reading(question, trip, f"the template refuses it: {answer['refused']}")
    expected, lost = _written(trip, answer["text"])
    if trip.cut or (lost and expected is None):
        return Reading(question, trip, lost)
    if "refused" in answer["whole"]:
        return Reading(question, trip, lost, (("refused", f"it cannot be parsed: {answer['whole']['refused']}"),))
    whole = parsed(answer["whole"])
    if expected and expected.content and _is_after_calls(trip, answer["text"]):
        return Reading(question, trip, "the template writes the content after the calls")  # parsers need not keep it
    broken = list(of_message(expected or whole, whole))
    if broken and all(check == "arguments" for check, _ in broken) and _is_bare(trip, whole):
        return Reading(question, trip, "the template writes values as Python does, or as bare text")
    if broken:
        return Reading(question, trip, lost, tuple(broken))
    streams = {kind: _of_stream(whole, each) for kind, each in answer["streamed"].items()}
    chunks = next((fault for kind, fault in streams.items() if fault and kind != "tokens"), "")
    if fault := streams.get("tokens", chunks):
        broken.append(("streamed", f"as a stream it is read differently, {fault}"))
    return Reading(question, trip, lost, tuple(broken), "" if fault else chunks)


def _written(trip: Trip, text: str) -> tuple[ParsedMessage | None, str]:
    """Returns the written part of the message (None if calls or arguments are missing), and the reason for the loss."""
    expected, words = trip.expected, flatten(text)
    called = Counter(name for name, _ in trip.calls)
    lost = [f"each call of {name}" for name, count in called.items() if text.count(name) < count]
    lost += [
        f"the argument {cut(leaf, 60)}"
        for _, arguments in trip.calls
        for leaf in map(str.strip, leaves(arguments))
        if not any(form in text for form in _forms(leaf)) or (leaf != _forms(leaf)[1] and f'"{leaf}"' in text)
    ]
    if lost:
        return None, f"the template does not write {lost[0]}"
    for part, wanted in (("reasoning", expected.reasoning), ("content", expected.content)):
        if wanted and not any(flatten(form) in words for form in _forms(wanted)):
            lost.append(f"the {part}")
    if "the reasoning" in lost:
        expected = replace(expected, reasoning="")
    if "the content" in lost:
        expected = replace(expected, content="")
    return expected, f"the template does not write {' and '.join(lost)}" if lost else ""


def _is_after_calls(trip: Trip, text: str) -> bool:
    return bool(trip.calls) and text.find(trip.content.strip()) > text.rfind(trip.calls[-1].name)


def _forms(text: str) -> tuple[str, ...]:
    """The forms in which templates write a text."""
    as_json = (json.dumps(text, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True))
    return (text, *as_json, repr(text)[1:-1], html.escape(text))


def _is_bare(trip: Trip, message: ParsedMessage) -> bool:
    """True if no text is misread, and each misread value is read as the text that the template wrote for it: as Python
    writes the value, or as JSON if the tool's schema also allows a text."""
    both = [(wanted, read) for (_, wanted), (_, read) in zip(trip.calls, message.calls, strict=True)]
    if not all(isinstance(read, dict) and read.keys() == wanted.keys() for wanted, read in both):
        return False
    others = [
        (wanted[key], read[key]) for wanted, read in both for key in wanted if not same_json(wanted[key], read[key])
    ]
    return all(not isinstance(wanted, str) and read in (str(wanted), json.dumps(wanted)) for wanted, read in others)


def _of_stream(whole: ParsedMessage, answer: Mapping[str, Any]) -> str:
    if "refused" in answer:
        return f"it cannot be parsed: {answer['refused']}"
    return next((f"{check}: {text}" for check, text in of_message(whole, parsed(answer))), "")


def parsed(answer: Mapping[str, Any]) -> ParsedMessage:
    """The message as the front end parsed it, without the white space around texts, which differs between parsers. Some
    parsers stream nothing for empty arguments."""
    calls = []
    for call in answer["calls"]:
        try:
            calls.append((call["name"], json.loads(call["arguments"] or "{}")))
        except ValueError:
            calls.append((call["name"], call["arguments"]))
    return ParsedMessage(answer["content"].strip(), answer["reasoning"].strip(), tuple(calls))


def of_message(expected: ParsedMessage, message: ParsedMessage) -> Broken:
    if message.reasoning != expected.reasoning:
        yield "reasoning", _differs("the reasoning", expected.reasoning, message.reasoning)
    if message.content != expected.content:
        yield "content", _differs("the content", expected.content, message.content)
    if [name for name, _ in message.calls] != [name for name, _ in expected.calls]:
        names = [", ".join(name for name, _ in each.calls) or "none" for each in (expected, message)]
        yield "calls", _differs("the calls", *names)
    else:
        for (name, wanted), (_, arguments) in zip(expected.calls, message.calls, strict=True):
            if not same_json(wanted, arguments):
                values = (json.dumps(each, ensure_ascii=False) for each in (wanted, arguments))
                yield "arguments", _differs(f"the arguments of {name}", *values)


def same_json(first: Any, second: Any) -> bool:
    """True for equal JSON values. 1 equals 1.0; 1 does not equal true, although it does in Python."""
    both = (json.loads(json.dumps(each), parse_float=_number) for each in (first, second))
    return len({json.dumps(each, sort_keys=True) for each in both}) == 1


def _number(text: str) -> float:
    return int(float(text)) if float(text).is_integer() else float(text)


def _differs(what: str, wanted: str, got: str) -> str:
    return f"{what}\n  wanted: {cut(wanted, 400)}\n  read:   {cut(got, 400)}"


def judge_readings(readings: Sequence[Reading], *, is_known: bool, tool_parser: bool) -> Iterator[Finding]:
    """Yields the findings about all turns. A parser that reads most of the template's turns is the template's parser:
    its misreadings are faults, or limits if a turn is hard to read. A parser that reads fewer turns is not proven,
    because the template may write earlier turns differently from the model. A parser of a known family fails instead,
    because the model's format is known."""
    whole = [each for each in readings if not each.trip.cut]
    groups = {
        "tool calls are": [each for each in whole if each.trip.calls and not each.trip.reasoning]
        if tool_parser
        else [],
        "reasoning is": [each for each in whole if each.trip.reasoning],
        "answers are": [each for each in whole if not each.trip.calls and not each.trip.reasoning],
    }
    for name, group in groups.items():
        telling = [each for each in group if not _is_untold(each)]
        misread = [each for each in telling if each.broken]
        easy = [each for each in telling if not each.trip.hard]
        is_its_parser = 4 * sum(bool(each.broken) for each in easy) < len(easy)
        if group and not telling:
            yield Finding("parsers", "", "unclear", f"{name} not proven: {group[0].lost}")
        elif misread and not is_its_parser and not is_known:
            text = f"{name} not proven: {len(misread)} of {len(telling)} turns of the template are read differently"
            yield Finding("parsers", misread[0].question.name, "unclear", f"{text}\n{misread[0].broken[0][1]}")
        else:
            for each in misread:
                verdict: Verdict = "pass" if each.trip.hard and is_its_parser else "fail"
                yield from (Finding(check, each.question.name, verdict, text) for check, text in each.broken)
        for each in group:
            if each.lost and telling:
                yield Finding("turns", each.question.name, "pass", each.lost)
            if each.in_chunks and not each.broken:
                text = f"when several tokens arrive at once, the parser reads this turn differently: {each.in_chunks}"
                yield Finding("streamed", each.question.name, "pass", text)


def _is_untold(reading: Reading) -> bool:
    """True if the template does not write the point of the turn, so that the turn shows nothing about the parser."""
    is_lost = "reasoning" in reading.lost or reading.lost.startswith("the template refuses")
    return is_lost or bool(reading.lost and reading.trip.calls and not reading.broken)
