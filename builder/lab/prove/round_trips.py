"""Turns that the template writes and the parsers read back: the losses of each, and whether the parsers are proven.

If the template's text lacks a part of the message, the template caused the difference; otherwise the parser did. This
needs no knowledge of the parser's format.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.base.values import dataclass, replace
from builder.evidence.run_record import Finding, Verdict
from builder.lab.prove.conversations import ParsedMessage, Question, Trip
from builder.lab.prove.properties import Broken, cut, flatten, leaves


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
