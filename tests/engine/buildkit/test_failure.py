"""The errors of failed builds, from recordings of their progress."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import BuilderError, BuildFailedError, DiskFullError, EngineError, TreeGoneError
from builder.engine.build_log import BuildLog, BuildProgress, build_error
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
    assert "`builder lock --update base`" in error.hint


def test_a_dockerfile_that_cannot_be_read(alive: Endpoint) -> None:
    error = judged(alive, recorded("syntax"))
    assert "unknown instruction: RUNX" in error.message
    assert "syntax:2" in error.message
    assert "2 | >>> RUNX foo" in error.message


def test_a_bake_file_without_the_target(alive: Endpoint) -> None:
    error = judged(alive, ["ERROR: failed to find target nosuch"])
    assert error.message == "the build failed: failed to find target nosuch"


def test_nothing_said_at_all(alive: Endpoint) -> None:
    assert judged(alive, [], code=102).message == "the build failed: buildx ended with 102"


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
        ("write /p/.builder/work/x/.tmp-1: no space left on device", "the disk that holds /p/.builder/work,"),
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
