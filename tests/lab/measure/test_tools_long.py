"""The probe of tool calls, on a server whose model does the job, or has a fault at one step of it."""

from __future__ import annotations

import pytest

from builder.base import events
from builder.base.errors import UsageError
from builder.lab.measure import probes
from builder.lab.measure.measurement import Outcome, ServedModel
from tests.lab.measure import agent
from tests.lab.measure.openai_server import Behaviour, Model, serving

CONTEXT = 131_072


def probed(model: Model, **more: object) -> Outcome:
    # The stand-in counts a token for each byte; four tools and twelve steps keep the test short.
    with serving(Behaviour(model=model, prefill=0, token=0, context=CONTEXT)) as served:
        return probes.run_tools_long(served, events.ignore, tools=4, steps=12, **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_model_that_does_the_job_passes_at_every_depth() -> None:
    done = probed(agent.obedient)
    assert done.findings == ()
    assert done.verdict == "pass"
    # Three shares, four sessions each, twelve calls and the end.
    assert done.counts["sessions"] == 12
    assert done.counts["answers"] == 12 * 13
    assert [(figure.at["share"], figure.values) for figure in done.figures] == [(0, (1.0,)), (50, (1.0,)), (75, (1.0,))]


@pytest.mark.slow
@pytest.mark.parametrize("context", [CONTEXT, 4_000_000])
def test_the_share_of_the_context_is_what_the_prompt_takes(context: int) -> None:
    behaviour = Behaviour(model=agent.obedient, prefill=0, token=0, context=context)
    with serving(behaviour) as served:
        probes.run_tools_long(served, events.ignore, tools=4, steps=2, shares=(50,))
    first = next(body for body in behaviour.requests if body["max_tokens"] > 1)
    taken = len(str(first["messages"])) + len(str(first["tools"]))
    assert 0.45 < taken / context < 0.55


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (agent.doubled, "doubled"),
        (agent.missing, "missing"),
        (agent.cut_off, "malformed"),
        (agent.raw, "raw"),
        (agent.other_tool, "wrong"),
        (agent.text_for_number, "wrong"),
        (agent.one_for_true, "wrong"),
    ],
)
def test_a_fault_at_step_nine_is_found_whole_and_streamed(fault: Model, kind: str) -> None:
    done = probed(agent.at_step(9, fault), shares=(0,))
    assert done.verdict == "fail"
    assert {finding.check for finding in done.findings} == {kind}
    places = {finding.at for finding in done.findings}
    assert "0 % of the context, session 1 (whole), step 9" in places
    assert "0 % of the context, session 2 (streamed), step 9" in places
    # The rest of the session is measured, too.
    assert done.counts["answers"] == 13 * done.counts["sessions"]


@pytest.mark.slow
def test_a_call_after_the_end_is_one_too_many() -> None:
    done = probed(
        agent.at_step(13, lambda body: agent.calling(body["tools"][0]["function"]["name"], "{}")), shares=(0,)
    )
    assert {finding.check for finding in done.findings} == {"doubled"}


@pytest.mark.slow
def test_a_fault_now_and_then_is_tried_as_often_as_it_takes() -> None:
    seen: list[int] = []

    def sometimes(body: dict[str, object]) -> dict[str, object]:
        seen.append(1)
        return agent.doubled(body) if len(seen) == 2 else agent.obedient(body)

    done = probed(agent.at_step(9, sometimes), shares=(0,))
    assert done.verdict == "fail"
    assert done.counts["sessions"] == 10
    assert done.counts["failed"] == 1


@pytest.mark.slow
def test_a_model_that_knows_no_tools_is_given_up_early() -> None:
    done = probed(agent.missing, shares=(0,))
    assert done.verdict == "fail"
    assert done.counts["answers"] == 3 * done.counts["sessions"]


def test_a_server_that_dies_is_a_failure_and_no_error() -> None:
    behaviour = Behaviour(model=agent.obedient, prefill=0, token=0, context=CONTEXT, dies_after=20)
    with serving(behaviour) as served:
        done = probes.run_tools_long(served, events.ignore, tools=4, steps=12, shares=(0, 50))
    assert done.verdict == "fail"
    assert [finding.check for finding in done.findings] == ["answers"]
    assert "EngineDeadError" in done.findings[0].text


@pytest.mark.slow
def test_a_server_that_stops_answering_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_ANSWER_SECONDS", 1.0)
    behaviour = Behaviour(model=agent.obedient, prefill=0, token=0, context=CONTEXT)

    def hanging(body: dict[str, object]) -> dict[str, object]:
        behaviour.is_silent = True
        return agent.obedient(body)

    behaviour.model = agent.at_step(3, hanging)
    with serving(behaviour) as served:
        done = probes.run_tools_long(served, events.ignore, tools=4, steps=12, shares=(0,))
    assert done.verdict == "fail"
    assert [finding.check for finding in done.findings] == ["answers"]


@pytest.mark.slow
def test_a_context_without_room_is_told() -> None:
    messages: list[str] = []
    with serving(Behaviour(model=agent.obedient, context=20_000)) as served:
        outcome = probes.run_tools_long(served, lambda event: messages.append(str(event)), tools=4, steps=12)
    assert [figure.at["share"] for figure in outcome.figures] == [0, 50]
    assert "no sessions at 75 % of the context" in messages[0]
    with pytest.raises(UsageError, match="has 2000 tokens: too few"), serving(Behaviour(context=2000)) as served:
        probes.run_tools_long(served, events.ignore)


def test_sessions_differ_and_are_the_same_the_next_time() -> None:
    first, again = probes.make_tool_job(46, 12, 5), probes.make_tool_job(46, 12, 5)
    assert first == again
    assert first != probes.make_tool_job(46, 12, 6)
    assert len({tool["function"]["name"] for tool in first.tools}) == 46
    assert {step.tool for step in first.steps} <= {tool["function"]["name"] for tool in first.tools}
    assert probes.tools_long_digest() != probes.tools_long_digest(tools=45)


def test_a_model_of_another_address_is_not_asked() -> None:
    silent = ServedModel("http://127.0.0.1:9/v1", "served", CONTEXT)
    assert probes.run_tools_long(silent, events.ignore).verdict == "fail"
