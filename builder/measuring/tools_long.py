"""The probe `tools-long`: tool calls in a long session, at several depths of the context, whole and streamed.

Tool calls break late: at the ninth of twelve steps, with many tools, past the middle of the context
(https://github.com/NVIDIA/dgx-spark-playbooks/issues/89). A session is a job of `STEPS` steps with `TOOLS` tools, in
which each answer is fed back; it begins with a text that takes a share of the context.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder import timestamp
from builder.errors import UsageError
from builder.events import Message
from builder.evidence.record import Figure, Finding
from builder.http_client import NoAnswerError
from builder.measuring import filler_text, outcome, repetition, served_model, tool_answer, tool_job
from builder.measuring.outcome import MeasuringProgress, Outcome
from builder.measuring.tool_answer import AnswerFault, NoMessageError

if TYPE_CHECKING:
    from builder.events import Report
    from builder.measuring.served_model import ServedModel
    from builder.measuring.tool_answer import ToolAnswer
    from builder.measuring.tool_job import ToolJob

NAME = "tools-long"
VERSION = "1"
TOOLS = 46
STEPS = 12
SHARES = (0, 50, 75)
"""The percentages of the context that are full when a session begins."""

_ANSWER_SECONDS = 600.0
_ANSWER_TOKENS = 4096  # a model may think before it calls
_BOTH_WAYS = 2  # whole and streamed
_MOST_FAULTS = 3  # in a row: the session then has nothing more to tell
_KINDS = ("missing", "doubled", "malformed", "raw", "wrong")
_SAMPLE = 4000  # characters
_STEP_TOKENS = 300  # of a call and its result


@dataclass(frozen=True)
class _Session:
    """A session that has ended: its faults by step, the answers that it had, and the reason if the server failed."""

    faults: tuple[tuple[int, AnswerFault], ...]
    answers: int
    failure: str = ""

    @property
    def passed(self) -> bool:
        return not self.faults and not self.failure

    @property
    def is_hopeless(self) -> bool:
        return len(self.faults) == self.answers


def probe(
    served: ServedModel, report: Report, *, tools: int = TOOLS, steps: int = STEPS, shares: tuple[int, ...] = SHARES
) -> Outcome:
    """Measures the served model's tool calls: at each share as many sessions as their results differ, every other one
    streamed. A fault of any is a failure. Shares at which the context has no room for a session are left out; raises
    UsageError where it never has."""
    began, started = time.monotonic(), timestamp.now()
    all_shares = shares
    shares = _with_room(served, tool_job.make(tools, steps, 0), shares, report)
    findings: list[Finding] = []
    sessions: list[_Session] = []
    figures: list[Figure] = []
    for place, share in enumerate(shares):
        at_share: list[_Session] = []
        while _needs_more(at_share):
            number = len(at_share)
            done = (place + number / repetition.MOST) / len(shares)
            passed = time.monotonic() - began
            left = passed * (1 - done) / done if done else None
            report(MeasuringProgress(f"{NAME} at {share} % of the context", done, left))
            session = _run(
                served, tool_job.make(tools, steps, 100 * share + number), share, is_streamed=bool(number % 2)
            )
            at_share.append(session)
            findings += _findings(session, share, number)
        sessions += at_share
        good = sum(session.answers - len(session.faults) for session in at_share)
        answered = sum(session.answers for session in at_share)
        if answered:
            at = {"share": share, "sessions": len(at_share)}
            figures.append(Figure("good_answers", at, "ratio", "higher", (good / answered,)))
        if at_share[-1].failure:
            break
    faults = [fault for session in sessions for _, fault in session.faults]
    counts = {"sessions": len(sessions), "failed": sum(not session.passed for session in sessions)}
    counts |= {"answers": sum(session.answers for session in sessions)}
    counts |= {kind: sum(fault.kind == kind for fault in faults) for kind in _KINDS}
    return Outcome(
        kind="probe",
        name=NAME,
        version=f"{NAME} {VERSION}",
        set=digest(tools, steps, all_shares),
        started=started,
        seconds=time.monotonic() - began,
        verdict=outcome.verdict_of(tuple(findings)),
        figures=tuple(figures),
        findings=tuple(findings),
        counts=counts,
        sampling={"temperature": 0},
    )


def digest(tools: int = TOOLS, steps: int = STEPS, shares: tuple[int, ...] = SHARES) -> str:
    """The digest of the sessions: with others it is another probe."""
    job = tool_job.make(tools, steps, 0)
    return outcome.digest([VERSION, job.task, job.tools, tools, steps, shares, _ANSWER_TOKENS, filler_text.digest()])


def _needs_more(sessions: list[_Session]) -> bool:
    """True while the sessions at a share do not tell enough. Two without a good answer, one of them streamed, do."""
    if sessions and sessions[-1].failure:
        return False
    if len(sessions) >= _BOTH_WAYS and all(session.is_hopeless for session in sessions):
        return False
    return repetition.needs_more([session.passed for session in sessions])


def _with_room(served: ServedModel, job: ToolJob, shares: tuple[int, ...], report: Report) -> tuple[int, ...]:
    """The shares at which the context has room for a session. A server that fails is left to the session itself."""
    try:
        least = _tokens(served, job, "")
    except (NoAnswerError, NoMessageError):
        if not served_model.answers(served):
            return shares
        least = served.context
    taken = len(job.steps) * _STEP_TOKENS + _ANSWER_TOKENS
    fitting = tuple(share for share in shares if max(least, served.context * share // 100) + taken <= served.context)
    if not fitting:
        raise UsageError(
            f"the context of {served.name} has {served.context} tokens: too few for the probe {NAME}",
            hint=f"{len(job.tools)} tools and {len(job.steps)} steps take more: serve it with a larger --max-model-len",
        )
    if left_out := [f"{share} %" for share in shares if share not in fitting]:
        report(Message(f"left out: {', '.join(left_out)} of the context, which leaves no room for a session"))
    return fitting


def _run(served: ServedModel, job: ToolJob, share: int, *, is_streamed: bool) -> _Session:
    faults: list[tuple[int, AnswerFault]] = []
    answers = 0
    try:
        messages = _beginning(served, job, share)
        for step in range(len(job.steps) + 1):
            answer = _ask(served, job, messages, is_streamed=is_streamed)
            answers += 1
            fault = _fault(job, step, answer)
            if fault:
                faults.append((step, fault))
            is_hopeless = [number for number, _ in faults[-_MOST_FAULTS:]] == list(
                range(step - _MOST_FAULTS + 1, step + 1)
            )
            if step == len(job.steps) or is_hopeless:
                break
            messages += _fed_back(job, step, None if fault else answer)
    except (NoAnswerError, NoMessageError) as error:
        return _Session(tuple(faults), answers, f"after {answers} answers: {error}")
    return _Session(tuple(faults), answers)


def _fault(job: ToolJob, step: int, answer: ToolAnswer) -> AnswerFault | None:
    if step == len(job.steps):
        return tool_answer.fault_of_end(answer)
    return tool_answer.fault(answer, job.steps[step].tool, job.steps[step].arguments)


def _beginning(served: ServedModel, job: ToolJob, share: int) -> list[dict[str, Any]]:
    """The messages that a session begins with: the job, after a text that fills the context to ``share`` percent."""
    if not share:
        return [_opening(job, "")]
    least = _tokens(served, job, "")
    tokens = max(_tokens(served, job, filler_text.text(_SAMPLE)) - least, 1)
    characters = int(max(served.context * share / 100 - least, 0) * _SAMPLE / tokens)
    filler = filler_text.text(min(characters, filler_text.LENGTH))
    return [_opening(job, filler)]


def _opening(job: ToolJob, text: str) -> dict[str, Any]:
    reading = f"Some reading that the job has nothing to do with:\n{text}\n\n" if text else ""
    return {"role": "user", "content": f"{reading}{job.task}"}


def _tokens(served: ServedModel, job: ToolJob, text: str) -> int:
    """The tokens of the prompt with ``text``, as the server counts them."""
    body = {"messages": [_opening(job, text)], "tools": job.tools, "max_tokens": 1, "temperature": 0}
    answer = served_model.complete(served, body, _ANSWER_SECONDS)
    try:
        return int(answer["usage"]["prompt_tokens"])
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise NoMessageError(f"the answer does not tell its tokens: {error}") from None


def _ask(served: ServedModel, job: ToolJob, messages: list[dict[str, Any]], *, is_streamed: bool) -> ToolAnswer:
    body = {
        "messages": messages,
        "tools": job.tools,
        "tool_choice": "auto",
        "temperature": 0,
        "max_tokens": _ANSWER_TOKENS,
    }
    if is_streamed:
        return tool_answer.of_stream(served_model.stream(served, body, _ANSWER_SECONDS))
    return tool_answer.of_message(served_model.complete(served, body, _ANSWER_SECONDS))


def _fed_back(job: ToolJob, step: int, answer: ToolAnswer | None) -> list[dict[str, Any]]:
    """The messages after a step: the call that was answered, or the right one where that was none, and its result."""
    due = job.steps[step]
    number = answer.calls[0].id if answer else ""
    number = number or f"call_{step}"
    text = answer.calls[0].arguments if answer else json.dumps(due.arguments, ensure_ascii=False)
    call = {"id": number, "type": "function", "function": {"name": due.tool, "arguments": text}}
    content = answer.content if answer and answer.content else None
    return [
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": number, "content": job.result(step)},
    ]


def _findings(session: _Session, share: int, number: int) -> list[Finding]:
    how = "streamed" if number % 2 else "whole"
    at = f"{share} % of the context, session {number + 1} ({how})"
    findings = [Finding(fault.kind, f"{at}, step {step + 1}", "fail", fault.text) for step, fault in session.faults]
    return [*findings, *([Finding("answers", at, "fail", session.failure)] if session.failure else [])]
