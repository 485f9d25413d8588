"""The steps of an upgrade, whatever comes of each."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import ConflictError
from builder.events import Message, ignore
from builder.project import Project
from builder.storage import file_lock
from builder.upgrading import journal, steps
from builder.upgrading.steps import (
    BuiltCandidate,
    Event,
    Measured,
    PointersMoved,
    Proved,
    ServerSettled,
    StepFailed,
    UnexpectedEventError,
    Upgrade,
    after,
)
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path

START = Upgrade("recipes/chat.yaml", ("Org/M",), {"vllm": None}, "small:1", "2026-11-20T22:00:00Z")
words = st.text(min_size=1, max_size=12)
reasons = st.lists(words, max_size=3).map(tuple)
events: st.SearchStrategy[Event] = st.one_of(
    st.sampled_from(["small:1", "small:2"]).map(BuiltCandidate),
    reasons.map(Proved),
    reasons.map(Measured),
    st.just(PointersMoved()),
    st.builds(StepFailed, words, st.booleans()),
    st.builds(ServerSettled, st.just("") | words),
)


def run(history: list[Event]) -> list[Upgrade]:
    """The states that lie on the way; events that have no place are left out."""
    states = [START]
    for event in history:
        try:
            states.append(after(states[-1], event))
        except UnexpectedEventError:
            continue
    return states


@given(st.lists(events, max_size=30))
def test_only_what_was_proven_and_measured_is_promoted(history: list[Event]) -> None:
    states = run(history)
    if any(state.stage == "promote" for state in states):
        assert any(isinstance(event, Proved) and not event.broken for event in history)
        assert any(isinstance(event, Measured) and not event.missing for event in history)
    if states[-1].result == "promoted":
        assert "promote" in [state.stage for state in states]
        assert any(isinstance(event, PointersMoved) for event in history)


@given(st.lists(events, max_size=30))
def test_it_goes_forward_alone_and_every_way_leads_through_the_server(history: list[Event]) -> None:
    stages = [steps.STAGES.index(state.stage) for state in run(history)]
    assert stages == sorted(set(stages))
    names = [state.stage for state in run(history)]
    if names[-1] == "done":
        assert names[-2] == "settle"
        assert run(history)[-1].result


@given(st.lists(events, max_size=30))
def test_a_result_and_its_reasons_stay(history: list[Event]) -> None:
    states = run(history)
    decided = [state for state in states if state.result]
    assert all(state.result == decided[0].result for state in decided)
    assert all(state.why[: len(decided[0].why)] == decided[0].why for state in decided)
    assert all(not state.result for state in states if state.stage in {"build", "prove", "measure", "promote"})


@given(st.lists(events, max_size=30))
def test_whoever_gives_up_before_the_pointers_move_gets_what_was_there(history: list[Event]) -> None:
    state = run(history)[-1]
    if state.stage in {"build", "prove", "measure", "promote"}:
        assert after(state, StepFailed("given up", aborted=True)).result == "aborted"
        assert after(state, StepFailed("no network")).result == "rejected"


@given(st.lists(events, max_size=30))
def test_a_few_events_finish_from_anywhere(history: list[Event]) -> None:
    state = run(history)[-1]
    rest: list[Event] = [BuiltCandidate("small:2"), Proved(), Measured(), PointersMoved(), ServerSettled()]
    for event in rest:
        if state.stage != "done":
            try:
                state = after(state, event)
            except UnexpectedEventError:
                continue
    assert state.stage == "done"


def test_the_same_image_again_is_no_upgrade() -> None:
    assert after(START, BuiltCandidate("small:1")).result == "unchanged"


@given(st.lists(events, max_size=30))
def test_the_journal_gives_back_what_was_written(history: list[Event]) -> None:
    state = run(history)[-1]
    assert journal._upgrade({"format": 2, **json.loads(json.dumps(asdict(state)))}) == state


def test_the_journal_in_its_folder(tmp_path: Path) -> None:
    project = Project(tmp_path)
    subject = "Org/M ü"
    with journal.locked(project, subject, ignore):
        assert journal.read(project, subject) is None
        journal.write(project, subject, START)
        assert journal.read(project, subject) == START
        assert journal.read(project, "Org_M") is None
        with pytest.raises(ConflictError, match="is under way, process"), journal.locked(project, subject, ignore):
            pass
        journal.remove(project, subject)
        assert journal.read(project, subject) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 3}', '{"format": 2, "stage": "dance"}', "[" * 9000])
def test_what_is_no_journal_is_told(tmp_path: Path, text: str) -> None:
    project = Project(tmp_path)
    projects.write(project.upgrading / "m.json", text)
    with pytest.raises(ConflictError, match="is no journal of an upgrade"):
        journal.read(project, "m")


@pytest.mark.parametrize(
    "planted",
    [
        {"served": {"builder.serve.asked": '{"container": {"volumes": ["/:/host"]}}'}},
        {"before": "-x:1"},
        {"candidate": "small:latest"},
        {"models": ["../../etc"]},
        {"update": {"vllm": "--upload-pack=x"}},
        {"update": {"-v": None}},
    ],
    ids=str,
)
def test_a_journal_with_more_than_names_is_refused(tmp_path: Path, planted: dict[str, object]) -> None:
    project = Project(tmp_path)
    text = {"format": 2, **asdict(START)}
    projects.write(project.upgrading / "m.json", json.dumps(text))
    assert journal.read(project, "m") == START
    projects.write(project.upgrading / "m.json", json.dumps(text | planted))
    with pytest.raises(ConflictError, match="is no journal of an upgrade"):
        journal.read(project, "m")


def test_an_upgrade_waits_while_a_killed_one_is_put_back(tmp_path: Path) -> None:
    project = Project(tmp_path)
    told: list[object] = []
    begun = threading.Event()

    def begin() -> None:
        with journal.locked(project, "chat", told.append):
            begun.set()

    with ThreadPoolExecutor() as pool:
        with journal.taken_over(project, "chat", 0):
            upgrade = pool.submit(begin)
            assert not begun.wait(0.6)
        upgrade.result(timeout=10)
    assert told == [Message("an upgrade of chat was killed: waiting until it is served as before")]


def test_the_guard_leaves_what_another_upgrade_goes_on_with(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with (
        journal.locked(project, "chat", ignore),
        pytest.raises(file_lock.LockHeldError),
        journal.taken_over(project, "chat", 0.1),
    ):
        pass
