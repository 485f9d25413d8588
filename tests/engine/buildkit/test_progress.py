"""BuildKit's raw JSON as events, from recordings of buildx 0.29.1."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from builder.engine.build_log import (
    BuildProgress,
    BuildStep,
    Event,
    StepFinished,
    StepOutput,
    StepProgress,
    StepStarted,
    is_internal,
    title,
)

RECORDINGS = Path(__file__).parent / "recordings"


def replay(name: str) -> tuple[BuildProgress, list[Event]]:
    progress = BuildProgress()
    lines = (RECORDINGS / f"{name}.jsonl").read_text().splitlines()
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    return progress, [event for message in messages for event in progress.feed(message)]


def steps(progress: BuildProgress) -> dict[str, BuildStep]:
    return {step.name: step for step in progress.steps.values() if not step.internal}


def test_a_build_from_the_beginning() -> None:
    progress, events = replay("fresh")
    names = list(steps(progress))
    # A step that several builds share has the number of one of them.
    assert re.fullmatch(r"\[1/\d\] FROM docker\.io/library/debian:bookworm-slim@sha256:\w+", names[0])
    assert names[1] == "[2/3] COPY blob /blob"
    assert names[2].startswith("[3/3] RUN --network=none printf")
    assert names[3] == "exporting to image"
    run = steps(progress)[names[2]]
    assert not run.cached
    assert 0 < run.seconds < 60
    assert run.exit_code is None
    assert not any(step.error for step in progress.steps.values())
    assert {type(event) for event in events} == {StepStarted, StepOutput, StepProgress, StepFinished}


def test_every_step_starts_once_and_before_it_ends() -> None:
    for recording in ("fresh", "cached", "failed", "two-targets"):
        _, events = replay(recording)
        started: list[str] = []
        for event in events:
            match event:
                case StepStarted():
                    assert event.step not in started
                    started.append(event.step)
                case StepFinished():
                    assert event.step in started


def test_output_is_text_whatever_its_bytes() -> None:
    _, events = replay("fresh")
    text = "".join(event.text for event in events if isinstance(event, StepOutput))
    assert "grün\n" in text
    assert "to stderr\n" in text
    assert "100%\n" in text
    assert "\nno newline" in text


def test_a_cached_build() -> None:
    progress, events = replay("cached")
    copied, ran = (step for name, step in steps(progress).items() if name.startswith(("[2/3]", "[3/3]")))
    assert copied.cached
    assert ran.cached
    assert (copied.seconds, ran.seconds) == (0, 0)
    assert not any(isinstance(event, StepOutput) for event in events)


def test_a_failed_step() -> None:
    progress, events = replay("failed")
    (failed,) = (step for step in progress.steps.values() if step.error)
    assert failed.name.startswith("[2/2] RUN")
    assert failed.exit_code == 42
    assert not failed.cancelled
    assert [event.error for event in events if isinstance(event, StepFinished) and event.error] == [failed.error]


def test_one_target_fails_and_takes_the_other_with_it() -> None:
    progress, _ = replay("two-targets")
    by_name = steps(progress)
    quick = next(step for name, step in by_name.items() if name.startswith("[quick 2/2]"))
    slow = next(step for name, step in by_name.items() if name.startswith("[slow 2/2]"))
    assert (quick.exit_code, quick.cancelled) == (7, False)
    assert slow.cancelled


@pytest.mark.parametrize(
    "text",
    [
        "[internal] load metadata for x",
        "[tf5 internal] load .dockerignore",
        "[context find-links] load from client",
        "[auth] a/b:pull",
        "resolving provenance for metadata file",
    ],
)
def test_buildkits_own_steps(text: str) -> None:
    assert is_internal(text)


@pytest.mark.parametrize(
    "text", ["[1/2] FROM x", "[tf5 2/3] RUN echo '[internal]'", "exporting to image", "[stage-1 1/1] COPY a b"]
)
def test_steps_of_a_person(text: str) -> None:
    assert not is_internal(text)


def test_amounts() -> None:
    _, events = replay("fresh")
    amounts = [event for event in events if isinstance(event, StepProgress) and event.what == "transferring context:"]
    assert amounts[-1].done
    assert amounts[-1].current > 300_000


def test_a_character_cut_in_two() -> None:
    progress = BuildProgress()
    halves = ("w7w=", "w6U=")  # b"\xc3\xbc", b"\xc3\xa5"
    cut = [{"vertex": "v", "stream": 1, "data": data} for data in ("w2E=", "ww==", "vA==", *halves)]
    assert "".join(event.text for event in progress.feed({"logs": cut}) if isinstance(event, StepOutput)) == "�aüüå"
    other = {"vertex": "v", "stream": 2, "data": "w7w="}
    assert [event.text for event in progress.feed({"logs": [other]}) if isinstance(event, StepOutput)] == ["ü"]


def test_a_step_that_starts_again_counts_both_times() -> None:
    progress = BuildProgress()
    first = {
        "digest": "a",
        "name": "[1/1] FROM x",
        "started": "2026-01-01T00:00:00.5Z",
        "completed": "2026-01-01T00:00:01.75Z",
    }
    again = {**first, "started": "2026-01-01T00:00:02.123456789Z", "completed": "2026-01-01T00:00:03.123456789Z"}
    events = [event for vertex in (first, first, again, again) for event in progress.feed({"vertexes": [vertex]})]
    assert [type(event) for event in events] == [StepStarted, StepFinished, StepFinished]
    assert progress.steps["a"].seconds == pytest.approx(2.25)


def test_what_is_not_known_is_ignored() -> None:
    progress = BuildProgress()
    assert list(progress.feed({"warnings": [{"short": "eA=="}], "vertexes": None, "more": 1})) == []
    assert list(progress.feed({"vertexes": [{"digest": "a", "name": "not yet begun"}]})) == []
    assert progress.steps == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("[stage-1 3/7] RUN <<'EOF' (# the Python packages...)", "[3/7] the Python packages"),
        ("[2/3] COPY build-metadata.yaml /workspace/", "[2/3] COPY build-metadata.yaml /workspace/"),
        ("[tf5 2/3] RUN make", "[tf5 2/3] RUN make"),
        ("exporting to image", "exporting to image"),
    ],
)
def test_a_step_is_called_what_the_template_calls_it(name: str, expected: str) -> None:
    assert title(name) == expected
