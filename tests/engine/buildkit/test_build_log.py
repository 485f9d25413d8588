"""The errors of failed builds, from recordings of their progress."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import BuilderError, BuildFailedError, DiskFullError, EngineError, TreeGoneError
from builder.engine.build_log import (
    TAIL,
    BuildLog,
    BuildProgress,
    Event,
    StepFinished,
    StepMemory,
    StepOutput,
    StepProgress,
    StepStarted,
    build_error,
    title,
)
from builder.engine.client import Endpoint
from tests.engine.client.test_api import answering, serving

if TYPE_CHECKING:
    from collections.abc import Iterator


RECORDINGS = Path(__file__).parent / "recordings"


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[Endpoint]:
    """A server that answers a ping as an engine does."""
    with serving(tmp_path / "s", answering(b"HTTP/1.0 200 OK\r\n\r\nOK")) as endpoint:
        yield endpoint


def judged(endpoint: Endpoint, lines: list[str], code: int = 1) -> BuilderError:
    progress, log, rest = BuildProgress(), BuildLog(io.StringIO()), []
    for line in lines:
        if line.startswith("{"):
            for event in progress.feed(json.loads(line)):
                log.write(event)
        else:
            rest.append(line)
    return build_error(endpoint, progress, log, rest, code, "builds/log")


def recorded(name: str) -> list[str]:
    return (RECORDINGS / f"{name}.jsonl").read_text().splitlines()


def test_a_failed_command(alive: Endpoint) -> None:
    error = judged(alive, recorded("failed"))
    assert isinstance(error, BuildFailedError)
    head, *tail = error.message.splitlines()
    assert head.startswith("the build failed in step `[2/2] RUN --network=none for i in")
    assert head.endswith("with exit code 42")
    assert tail == [*(f"  line {number}" for number in range(7, 21)), "  last words"]
    assert (error.log, error.exit_code) == ("builds/log", 6)


def test_the_target_that_failed_is_named_and_not_the_one_it_took_with_it(alive: Endpoint) -> None:
    error = judged(alive, recorded("two-targets"))
    assert "[quick 2/2]" in error.message
    assert "exit code 7" in error.message
    assert "slow" not in error.message


def test_a_source_tree_that_its_repository_does_not_give(alive: Endpoint) -> None:
    error = judged(alive, recorded("gone-tree"))
    assert isinstance(error, TreeGoneError)
    assert error.address == "git://127.0.0.1/up.git#" + "0123456789" * 4
    assert error.message.startswith(f"the source tree {error.address} cannot be fetched: failed to checkout remote")
    assert "\n" not in error.message


def test_a_pinned_base_that_no_registry_gives(alive: Endpoint) -> None:
    error = judged(alive, recorded("gone-base"))
    assert isinstance(error, BuildFailedError)
    assert "debian:bookworm-slim@sha256:3783cc" in error.message
    assert "no such host" in error.message
    assert "`builder lock DEFINITION --update base`" in error.hint


def test_a_dockerfile_that_cannot_be_read(alive: Endpoint) -> None:
    error = judged(alive, recorded("syntax"))
    assert "unknown instruction: RUNX" in error.message
    assert "syntax:2" in error.message
    assert "2 | >>> RUNX foo" in error.message


def test_a_bake_file_without_the_target(alive: Endpoint) -> None:
    error = judged(alive, ["ERROR: failed to find target nosuch"])
    assert error.message == "the build failed: failed to find target nosuch"


@pytest.mark.parametrize(
    ("reason", "is_own"),
    [
        ("mkdir /proc/x: no such file or directory", True),
        ("mkdir /home/a/.docker: read-only file system", True),
        ("mkdir /home/a/.docker/buildx/instances: permission denied", True),
        ("open /home/a/.docker/buildx/.lock: permission denied", True),
        ("open /home/a/project/Dockerfile: no such file or directory", False),
        ("mkdir /home/a/.docker: no space left on device", False),
    ],
)
def test_a_home_that_buildx_cannot_write(alive: Endpoint, reason: str, *, is_own: bool) -> None:
    error = judged(alive, [f"ERROR: {reason}"])
    assert (error.message, error.exit_code) == (f"the build failed: {reason}", 6)
    assert ("BUILDX_CONFIG" in error.hint) == is_own


def test_nothing_said_at_all(alive: Endpoint) -> None:
    assert judged(alive, [], code=102).message == "the build failed: buildx ended with exit code 102"


def test_cancelled(alive: Endpoint) -> None:
    assert "cancelled" in judged(alive, ["ERROR: failed to solve: Canceled: context canceled"], code=130).message


def test_an_engine_that_went_away(tmp_path: Path) -> None:
    gone = Endpoint(f"unix://{tmp_path}/none", (), "a test")
    error = judged(gone, ["ERROR: failed to solve: Unavailable: error reading from server: EOF"])
    assert isinstance(error, EngineError)
    assert "stopped during the build" in error.message


def test_a_step_that_failed_before_the_engine_went_away_is_the_reason(tmp_path: Path) -> None:
    gone = Endpoint(f"unix://{tmp_path}/none", (), "a test")
    assert isinstance(judged(gone, recorded("failed")), BuildFailedError)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("write /x: no space left on device", "disk is full"),
        ("tar: No space left on device", "disk is full"),
        ("write /p/.builder/work/x/.tmp-1: no space left on device", "the disk of this project"),
        ("/bin/bash: line 1: 5 Killed", "free memory on the machine that builds"),
        ("process did not complete successfully: signal: killed", "free memory on the machine that builds"),
    ],
)
def test_hints(alive: Endpoint, error: str, hint: str) -> None:
    assert hint in judged(alive, [f"ERROR: failed to solve: {error}"]).hint


@pytest.mark.parametrize(
    ("error", "kind"),
    [("tar: No space left on device", DiskFullError), ("signal: killed", BuildFailedError)],
)
def test_a_full_disk_is_told_from_what_does_not_build(alive: Endpoint, error: str, kind: type) -> None:
    assert type(judged(alive, [f"ERROR: failed to solve: {error}"])) is kind


def test_a_long_step_is_named_by_its_beginning(alive: Endpoint) -> None:
    vertex = {
        "digest": "a",
        "name": "[2/2] RUN <<EOF\nmake\nEOF",
        "started": "2026-01-01T00:00:00Z",
        "completed": "2026-01-01T00:00:01Z",
        "error": 'process "/bin/sh -c make" did not complete successfully: exit code: 2',
    }
    error = judged(alive, [json.dumps({"vertexes": [vertex]})])
    assert error.message == "the build failed in step `[2/2] RUN <<EOF…`, with exit code 2"


# The readable log of a build.


def test_every_line_carries_its_step() -> None:
    file = io.StringIO()
    log = BuildLog(file)
    log.write(StepStarted("a", "[1/2] FROM x"))
    log.write(StepStarted("b", "[2/2] RUN <<EOF\nmake\nEOF"))
    log.write(StepOutput("b", "one\ntw"))
    log.write(StepProgress("a", "layer", 1, 2, done=False))
    log.write(StepFinished("a", "[1/2] FROM x", cached=True, seconds=0))
    log.write(StepOutput("b", "o\n\nthree"))
    log.write(StepFinished("b", "[2/2] RUN …", cached=False, seconds=1.26, error="exit code: 2"))
    log.write_line("ERROR: failed\n")
    assert file.getvalue().splitlines() == [
        "#1 [1/2] FROM x",
        "#2 [2/2] RUN <<EOF",
        "#2 make",
        "#2 EOF",
        "#2 one",
        "#1 CACHED",
        "#2 two",
        "#2 ",
        "#2 three",
        "#2 ERROR after 1.3s: exit code: 2",
        "ERROR: failed",
    ]


def test_a_progress_bar_leaves_one_line() -> None:
    file = io.StringIO()
    log = BuildLog(file)
    log.write(StepOutput("a", "10%\r50%\r"))
    log.write(StepOutput("a", "100%\nwindows line\r\n"))
    assert file.getvalue() == "#1 100%\n#1 windows line\n"


def test_of_output_without_a_line_break_only_the_latest_state_is_kept() -> None:
    file = io.StringIO()
    log = BuildLog(file)
    for number in range(3000):
        log.write(StepOutput("a", f"progress {number}\r"))
        log.write(StepOutput("b", "x" * 100))
    log.write(StepOutput("a", "\r"))
    assert log.tail("a") == ["progress 2999\r\r"]
    log.write(StepOutput("a", "\r\n"))
    log.write(StepFinished("b", "[1/1] RUN x", cached=False, seconds=1.0))
    assert file.getvalue() == f"#1 progress 2999\n#2 {'x' * 300_000}\n#2 DONE 1.0s\n"


def test_an_end_is_written_once_unless_there_is_news() -> None:
    file = io.StringIO()
    log = BuildLog(file)
    for seconds in (0.0, 0.0, 2.0):
        log.write(StepFinished("a", "[internal] load build context", cached=False, seconds=seconds))
    assert file.getvalue() == "#1 DONE 0.0s\n#1 DONE 2.0s\n"


def test_the_tail_holds_the_last_lines_of_one_step() -> None:
    log = BuildLog(io.StringIO())
    for number in range(100):
        log.write(StepOutput("a", f"line {number}\n"))
        log.write(StepOutput("b", "other\n"))
    log.write(StepOutput("a", "unfinished"))
    assert log.tail("a") == [*(f"line {number}" for number in range(100 - TAIL, 100)), "unfinished"]
    assert log.tail("never heard of") == []


def test_what_is_written_is_there_at_once(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        BuildLog(file).write(StepStarted("a", "[1/1] FROM x"))
        assert (tmp_path / "log").read_text() == "#1 [1/1] FROM x\n"


def after(*lines: str) -> StepMemory:
    memory = StepMemory()
    for line in lines:
        memory = memory.after(line)
    return memory


def test_a_step_tells_its_jobs_and_the_memory_that_they_took() -> None:
    told = ["compiling vllm with MAX_JOBS=12: 121 GiB at 8 GiB a job", "[1/2] Building", ""]
    assert after(*told) == StepMemory("vllm", 12)
    assert after(*told, "compiling vllm with MAX_JOBS=12 took 45312 MiB of memory") == StepMemory("vllm", 12, 45312)
    killed = after(*told, "compiling vllm with MAX_JOBS=12 ran out of memory: the kernel killed a process")
    assert killed == StepMemory("vllm", 12, 0, killed=True)


@pytest.mark.parametrize(
    "line",
    [
        "Killed",
        "/bin/sh: 1: Killed",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "c++: fatal error: Terminated signal terminated program cc1plus",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "collect2: fatal error: ld terminated with signal 9 [Killed]",
        "FAILED: [code=137] fused_moe_120/x.cuda.o",
        "process didn't exit successfully: `rustc` (signal: 9, SIGKILL: kill)",
        "go build: /usr/lib/go/pkg/tool/compile: signal: killed",
        "subprocess.CalledProcessError: Command '['ninja']' died with <Signals.SIGKILL: 9>.",
        "Command '['cmake']' returned non-zero exit status 137.",
        "virtual memory exhausted: Cannot allocate memory",
        "LLVM ERROR: out of memory",
    ],
)
def test_a_killed_compiler_is_known_by_what_is_left_of_it(line: str) -> None:
    assert after("compiling vllm with MAX_JOBS=12: 121 GiB at 8 GiB a job", line).killed


@pytest.mark.parametrize("line", ["[137/2000] Building CXX object", "exit code: 1", "ninja: build stopped"])
def test_other_lines_are_no_sign(line: str) -> None:
    assert not after(line).killed


# BuildKit's raw JSON as events, from recordings of buildx 0.29.1.

PROGRESS_RECORDINGS = Path(__file__).parent / "recordings"


def replay(name: str) -> tuple[BuildProgress, list[Event]]:
    progress = BuildProgress()
    lines = (PROGRESS_RECORDINGS / f"{name}.jsonl").read_text().splitlines()
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    return progress, [event for message in messages for event in progress.feed(message)]


def steps(progress: BuildProgress) -> dict[str, StepFinished]:
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
    assert StepStarted("a", text).internal


@pytest.mark.parametrize(
    "text", ["[1/2] FROM x", "[tf5 2/3] RUN echo '[internal]'", "exporting to image", "[stage-1 1/1] COPY a b"]
)
def test_steps_of_a_person(text: str) -> None:
    assert not StepStarted("a", text).internal


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
        (f"[base 1/4] FROM library/debian:12@sha256:{'0' * 64}", "[base 1/4] FROM library/debian:12"),
        ("exporting to image", "exporting to image"),
    ],
)
def test_a_step_is_called_what_the_template_calls_it(name: str, expected: str) -> None:
    assert title(name) == expected
