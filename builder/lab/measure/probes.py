"""Probes check a served model: the built-in tools-long, and a project's own probes.

tools-long checks tool calls in a long session, whole and streamed, at several depths of the context. Tool calls fail
late: at the ninth of twelve steps, with many tools, past the middle of the context
(https://github.com/NVIDIA/dgx-spark-playbooks/issues/89). A session is a job of `STEPS` steps with `TOOLS` tools. It
begins with a text that fills a share of the context, and each answer is fed back. The result of a call names the next
call, with a ticket to pass on, so that the model cannot guess a call.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from builder.base import words
from builder.base.errors import UsageError
from builder.base.events import Message, Report
from builder.base.http_client import NoAnswerError
from builder.base.values import dataclass
from builder.definitions import configuration
from builder.evidence import statistics
from builder.evidence.run_record import Figure, Finding
from builder.lab.measure import bench, measurement, own_script

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.lab.measure.measurement import ServedModel

Fault = Literal["missing", "doubled", "malformed", "raw", "wrong"]
NAME = "tools-long"
VERSION = "1"
TOOLS = 46
STEPS = 12
SHARES = (0, 50, 75)
"""The percentages of the context that are full when a session begins."""

_ANSWER_SECONDS = 600.0
_ANSWER_TOKENS = 4096  # a model may reason before it calls
_MOST_FAULTS = 3  # in a row: further steps would show nothing new
_SAMPLE = 4000  # characters
_STEP_TOKENS = 300  # of a call and its result


@dataclass(frozen=True)
class _Session:
    """The faults of a session by step, the number of its answers, and why the server failed."""

    faults: tuple[tuple[int, AnswerFault], ...]
    answers: int
    failure: str = ""

    @property
    def passed(self) -> bool:
        return not self.faults and not self.failure


def names(project: Project) -> tuple[str, ...]:
    """The names of all probes of a project; its own probes cannot replace `tools-long`."""
    return tuple(dict.fromkeys((NAME, *configuration.probe_names(project))))


def require(project: Project, name: str) -> None:
    """Raises UsageError if the probe does not exist, FileProblemsError if it is invalid."""
    if name != NAME:
        configuration.load_probe(project, name)


def run_probe(
    project: Project, served: ServedModel, name: str, environ: Mapping[str, str], report: Report
) -> measurement.Outcome:
    """Runs a probe against a served model. Raises the errors of `require`, and MeasuringError if it cannot run."""
    if name == NAME:
        return run_tools_long(served, report)
    return own_script.run_own_probe(served, configuration.load_probe(project, name), environ, report)


def run_tools_long(
    served: ServedModel, report: Report, *, tools: int = TOOLS, steps: int = STEPS, shares: tuple[int, ...] = SHARES
) -> measurement.Outcome:
    """Runs as many sessions at each share as their results require, alternately whole and streamed. Shares without room
    for a session are left out. Raises UsageError if no share has room."""
    began, started = time.monotonic(), words.now()
    fitting = _with_room(served, make_tool_job(tools, steps, 0), shares, report)
    findings: list[Finding] = []
    sessions: list[_Session] = []
    figures: list[Figure] = []
    for place, share in enumerate(fitting):
        at_share: list[_Session] = []
        while _needs_more(at_share):
            number = len(at_share)
            done = (place + number / statistics.MOST_REPEATS) / len(fitting)
            report(measurement.MeasuringProgress.since(f"{NAME} at {share} % of the context", done, began))
            job = make_tool_job(tools, steps, 100 * share + number)
            session = _run(served, job, share, is_streamed=bool(number % 2))
            at_share.append(session)
            at = f"{share} % of the context, session {number + 1} ({'streamed' if number % 2 else 'whole'})"
            findings += (Finding(kind, f"{at}, step {step + 1}", "fail", text) for step, (kind, text) in session.faults)
            findings += [Finding("answers", at, "fail", session.failure)] if session.failure else []
        sessions += at_share
        good = sum(session.answers - len(session.faults) for session in at_share)
        if answered := sum(session.answers for session in at_share):
            place_of = {"share": share, "sessions": len(at_share)}
            figures.append(Figure("good_answers", place_of, "ratio", "higher", (good / answered,)))
        if at_share[-1].failure:
            break
    kinds = [kind for session in sessions for _, (kind, _) in session.faults]
    counts = {"sessions": len(sessions), "failed": sum(not session.passed for session in sessions)}
    counts |= {"answers": sum(session.answers for session in sessions)}
    counts |= {kind: kinds.count(kind) for kind in get_args(Fault)}
    return measurement.Outcome(
        kind="probe",
        name=NAME,
        version=f"{NAME} {VERSION}",
        set=tools_long_digest(tools, steps, shares),
        started=started,
        seconds=time.monotonic() - began,
        verdict=measurement.verdict_of(tuple(findings)),
        figures=tuple(figures),
        findings=tuple(findings),
        counts=counts,
        sampling={"temperature": 0},
    )


def tools_long_digest(tools: int = TOOLS, steps: int = STEPS, shares: tuple[int, ...] = SHARES) -> str:
    job = make_tool_job(tools, steps, 0)
    return measurement.outcome_digest(
        [VERSION, job.task, job.tools, tools, steps, shares, _ANSWER_TOKENS, bench.filler_digest()]
    )


def _needs_more(sessions: list[_Session]) -> bool:
    """True if more sessions at a share are needed. Two sessions without a good answer, one of them streamed, are
    enough."""
    is_hopeless = len(sessions) > 1 and all(len(session.faults) == session.answers for session in sessions)
    if is_hopeless or (sessions and sessions[-1].failure):
        return False
    return statistics.needs_more([session.passed for session in sessions])


def _with_room(served: ServedModel, job: ToolJob, shares: tuple[int, ...], report: Report) -> tuple[int, ...]:
    """The shares with room for a session. All shares if the server fails: the session then reports the failure."""
    try:
        least = _tokens(served, job, "")
    except NoAnswerError:
        if not measurement.model_answers(served):
            return shares
        least = served.context
    taken = len(job.steps) * _STEP_TOKENS + _ANSWER_TOKENS
    fitting = tuple(share for share in shares if max(least, served.context * share // 100) + taken <= served.context)
    if not fitting:
        message = f"the context of {served.name} has {served.context} tokens: too few for the probe {NAME}"
        hint = f"{len(job.tools)} tools and {len(job.steps)} steps take more: serve it with a larger --max-model-len"
        raise UsageError(message, hint=hint)
    if left_out := [f"{share} %" for share in shares if share not in fitting]:
        report(Message(f"no sessions at {', '.join(left_out)} of the context: the tool calls would have no room"))
    return fitting


def _run(served: ServedModel, job: ToolJob, share: int, *, is_streamed: bool) -> _Session:
    faults: list[tuple[int, AnswerFault]] = []
    answers = 0
    try:
        messages = _beginning(served, job, share)
        for step in range(len(job.steps) + 1):
            body = {"messages": messages, "tools": job.tools, "tool_choice": "auto", "temperature": 0}
            body["max_tokens"] = _ANSWER_TOKENS
            answer = (
                of_stream(measurement.stream(served, body, _ANSWER_SECONDS))
                if is_streamed
                else of_message(measurement.complete(served, body, _ANSWER_SECONDS))
            )
            answers += 1
            if fault := fault_of_answer(answer, job.steps[step] if step < len(job.steps) else None):
                faults.append((step, fault))
            last = [number for number, _ in faults[-_MOST_FAULTS:]]
            if step == len(job.steps) or last == [*range(step - _MOST_FAULTS + 1, step + 1)]:
                break
            messages += _fed_back(job, step, None if fault else answer)
    except NoAnswerError as error:
        return _Session(tuple(faults), answers, f"after {answers} answers: {error}")
    return _Session(tuple(faults), answers)


def _beginning(served: ServedModel, job: ToolJob, share: int) -> list[dict[str, Any]]:
    """The first message: a text that fills the context to ``share`` percent, then the job."""
    if not share:
        return _opening(job, "")
    least = _tokens(served, job, "")
    tokens = max(_tokens(served, job, bench.filler_text(_SAMPLE)) - least, 1)
    characters = int(max(served.context * share / 100 - least, 0) * _SAMPLE / tokens)
    return _opening(job, bench.filler_text(characters))


def _opening(job: ToolJob, text: str) -> list[dict[str, Any]]:
    reading = f"Some reading that the job has nothing to do with:\n{text}\n\n" if text else ""
    return [{"role": "user", "content": f"{reading}{job.task}"}]


def _tokens(served: ServedModel, job: ToolJob, text: str) -> int:
    """The number of tokens of the prompt with ``text``, counted by the server."""
    body = {"messages": _opening(job, text), "tools": job.tools, "max_tokens": 1, "temperature": 0}
    answer = measurement.complete(served, body, _ANSWER_SECONDS)
    try:
        return int(answer["usage"]["prompt_tokens"])
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise NoAnswerError(f"the answer does not report its token count: {type(error).__name__}: {error}") from None


def _fed_back(job: ToolJob, step: int, answer: ToolAnswer | None) -> list[dict[str, Any]]:
    """The messages after a step: the call and its result. A wrong call is replaced with the right one."""
    due = job.steps[step]
    number = (answer.calls[0].id if answer else "") or f"call_{step}"
    text = answer.calls[0].arguments if answer else json.dumps(due.arguments, ensure_ascii=False)
    call = {"id": number, "type": "function", "function": {"name": due.tool, "arguments": text}}
    content = answer.content if answer and answer.content else None
    return [
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": number, "content": job.result(step)},
    ]


# The job of a session. Only the names of the tools differ, and most offered tools are never needed.

_VERBS = ("read", "list", "create", "update", "archive", "compare", "export", "check", "merge", "rename")
_NOUNS = ("invoice", "parcel", "meter", "ticket", "sensor", "contract", "route", "report")
_PLACES = ("Bern", "Århus", "São Paulo", "Kraków", "Nagoya", "Québec", "Tromsø")

Arguments = dict[str, Any]


@dataclass(frozen=True)
class JobStep:
    """The expected call: the tool's name and exactly these arguments."""

    tool: str
    arguments: Arguments

    @property
    def instruction(self) -> str:
        values = ", ".join(
            f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in self.arguments.items()
        )
        return f"call the tool {self.tool} once, with exactly these arguments: {values}"


@dataclass(frozen=True)
class ToolJob:
    """The steps of a job, and the tools that are offered for it, in the format of the OpenAI API."""

    tools: tuple[dict[str, Any], ...]
    steps: tuple[JobStep, ...]

    @property
    def task(self) -> str:
        return (
            f"This is a job of {len(self.steps)} steps. Each step is one tool call. The result of a call tells the next"
            " step; make that call then, without writing anything. When a result says that the job is done, make no"
            f" further call and answer with the word DONE.\nThe first step: {self.steps[0].instruction}."
        )

    def result(self, step: int) -> str:
        if step + 1 == len(self.steps):
            return json.dumps({"ok": True, "next": "The job is done: make no further call, answer with the word DONE."})
        following = self.steps[step + 1].instruction
        return json.dumps({"ok": True, "next": f"Step {step + 2}: {following}."}, ensure_ascii=False)


def make_tool_job(tools: int, steps: int, seed: int) -> ToolJob:
    """A job with this number of ``tools`` and ``steps``. The same ``seed`` gives the same job."""
    numbers = random.Random(seed)  # noqa: S311
    names = [f"{verb}_{noun}" for noun in _NOUNS for verb in _VERBS]
    chosen = [names[number % len(names)] + (f"_{number}" if number >= len(names) else "") for number in range(tools)]
    numbers.shuffle(chosen)
    return ToolJob(
        tuple(_tool(name) for name in sorted(chosen)),
        tuple(JobStep(numbers.choice(chosen), _arguments(numbers)) for _ in range(steps)),
    )


def _arguments(numbers: random.Random) -> Arguments:
    return {
        "ticket": f"T-{numbers.randrange(16**8):08x}",
        "place": numbers.choice(_PLACES),
        "count": numbers.randrange(1, 1000),
        "urgent": numbers.random() < 0.5,
        "codes": [f"{numbers.randrange(100):02d}" for _ in range(numbers.randrange(1, 4))],
    }


def _tool(name: str) -> dict[str, Any]:
    verb, _, noun = name.partition("_")
    properties = {
        "ticket": {"type": "string", "description": "The ticket of this step."},
        "place": {"type": "string", "description": "The place that it is for."},
        "count": {"type": "integer", "description": "How many."},
        "urgent": {"type": "boolean", "description": "True where it cannot wait."},
        "codes": {"type": "array", "items": {"type": "string"}, "description": "The codes, in order."},
    }
    function = {
        "name": name,
        "description": f"Tool to {verb} the {noun.replace('_', ' ')} of a place.",
        "parameters": {"type": "object", "properties": properties, "required": list(properties)},
    }
    return {"type": "function", "function": function}


# An answer to a message with tools, and its fault.

# The marks of calls in the formats of model families. A mark in a text shows a call that the parser missed.
_MARKS = (
    "<tool_call>", "</tool_call>", "<function=", "<parameter=", "<arg_key>", "<arg_value>", "[TOOL_CALLS]",
    "<|python_tag|>", "<|tool_call", "<tool_call|>", "<|call|>", "<|constrain|>", "<｜tool▁call", "<｜DSML｜",  # noqa: RUF001
)  # fmt: skip


class ToolCall(NamedTuple):
    id: str
    name: str
    arguments: str


class ToolAnswer(NamedTuple):
    content: str
    calls: tuple[ToolCall, ...]


AnswerFault: TypeAlias = "tuple[Fault, str]"  # the fault, and the text that shows it


def of_message(answer: Mapping[str, Any]) -> ToolAnswer:
    """The answer in a chat completion. Raises NoAnswerError."""
    try:
        message = answer["choices"][0]["message"]
        calls = [(call, call["function"]) for call in message.get("tool_calls") or ()]
        return ToolAnswer(
            str(message.get("content") or ""),
            tuple(ToolCall(str(c.get("id") or ""), str(f["name"]), str(f.get("arguments") or "")) for c, f in calls),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise NoAnswerError(f"the answer contains no message: {type(error).__name__}: {error}") from None


def of_stream(events: Iterable[Mapping[str, Any]]) -> ToolAnswer:
    """The answer in a stream, assembled by the index of each call. Raises NoAnswerError."""
    content: list[str] = []
    parts: dict[int, dict[str, str]] = {}
    try:
        for event in events:
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                content.append(str(delta.get("content") or ""))
                for call in delta.get("tool_calls") or ():
                    part = parts.setdefault(int(call["index"]), {"id": "", "name": "", "arguments": ""})
                    function = call.get("function") or {}
                    part["id"] = str(call.get("id") or part["id"])
                    part["name"] += str(function.get("name") or "")
                    part["arguments"] += str(function.get("arguments") or "")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NoAnswerError(f"an event of the stream is malformed: {type(error).__name__}: {error}") from None
    return ToolAnswer("".join(content), tuple(ToolCall(**part) for _, part in sorted(parts.items())))


def fault_of_answer(answer: ToolAnswer, step: JobStep | None) -> AnswerFault | None:
    """The fault of an answer, which must make the call of ``step`` exactly once, or no call after the last step."""
    if mark := _mark(answer.content):
        return "raw", f"the text contains `{mark}`: {_short(answer.content)}"
    if step is None:
        return ("doubled", f"a call of {_short(answer.calls[0].name)} after the job was done") if answer.calls else None
    if not answer.calls:
        return "missing", f"no call of {step.tool}, but: {_short(answer.content) or 'nothing'}"
    if len(answer.calls) > 1:
        names = ", ".join(call.name for call in answer.calls)
        return "doubled", f"{len(answer.calls)} calls instead of one: {_short(names)}"
    return _fault_of_call(answer.calls[0], step)


def _fault_of_call(call: ToolCall, step: JobStep) -> AnswerFault | None:
    arguments = _short(call.arguments)
    try:
        given = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return "malformed", f"the arguments are not JSON: {arguments}"
    if not isinstance(given, dict):
        return "malformed", f"the arguments are not an object: {arguments}"
    if mark := _mark(call.name) or _mark(call.arguments):
        return "raw", f"the call contains `{mark}`: {_short(call.name)} {arguments}"
    if call.name != step.tool:
        return "wrong", f"a call of {_short(call.name)} instead of {step.tool}"
    # Compared as text, because Python treats 1 and True as equal.
    if json.dumps(given, sort_keys=True) != json.dumps(step.arguments, sort_keys=True):
        expected = json.dumps(step.arguments, ensure_ascii=False)
        return "wrong", f"arguments {arguments} instead of {expected}"
    return None


def _mark(text: str) -> str:
    return next((mark for mark in _MARKS if mark in text), "")


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"
