"""The readable log of a build."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from builder.engine.build_log import TAIL, BuildLog, StepFinished, StepOutput, StepProgress, StepStarted

if TYPE_CHECKING:
    from pathlib import Path


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
