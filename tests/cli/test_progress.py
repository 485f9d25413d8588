"""The progress of a command: on a terminal, in a pipe, and at each verbosity."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import projects

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.slow

# After some events a program waits until the terminal has shown them: until it reads a line, or the end of the input.
EVENTS = """
import sys, time
import click
from builder.building.bake import StepTimes
from builder.cli import output, progress
from builder.engine.build_log import LayersPacked, StepProgress, StepFinished, StepOutput, StepStarted
from builder.base.events import Message

@click.command()
@output.verbosity_options
def build():
    with progress.reporter() as report:
        report(Message("resolving the base image"))
        report(StepTimes({"the vllm wheel": 75.0}))
        report(StepStarted("a", "[2/3] RUN <<EOF (# the vllm wheel...)"))
        report(StepOutput("a", "compi"))
        report(StepOutput("a", "ling with pw-plan"))
        report(StepOutput("a", "ted-12\\nand no end"))
        sys.stdin.readline()
        report(StepFinished("a", "[2/3] RUN <<EOF (# the vllm wheel...)", False, 61.0))
        report(StepFinished("b", "[internal] load .dockerignore", False, 1.0))
        report(StepFinished("c", "[3/3] RUN true", True, 0.0))
        report(StepFinished("e", "[3/3] RUN true", True, 0.0))
        report(StepFinished("f", "[1/3] RUN false", False, 0.0, "context canceled"))
        report(StepStarted("d", "exporting to image"))
        sys.stdin.readline()
        report(StepFinished("d", "exporting to image", False, 0.01))

build()
"""

OTHERS = """
import sys
from builder.cli import progress
from builder.engine.transfer import LayerProgress
from builder.base.events import Message
from builder.base.events import NodeEvent
from builder.base.events import TransferProgress
from builder.base.events import WaitingStarted
from builder.lab.measure.measurement import MeasuringProgress
from builder.serving.server_log import Phase

with progress.reporter() as report:
    for gigabytes in (1, 2):
        report(NodeEvent("spark2", LayerProgress(gigabytes * 10**9, 5 * 10**9)))
        report(TransferProgress("Org/Model", gigabytes * 10**9, 8 * 10**9))
        sys.stdin.readline()
    report(NodeEvent("spark2", Message("has it already")))
    report(WaitingStarted())
    sys.stdin.readline()
    report(Phase("loading weights", 40))
    report(Phase("loading weights", 50))
    sys.stdin.readline()
    report(MeasuringProgress("throughput", 0.5, 63.0))
    sys.stdin.readline()
"""

STEP = "last time"  # as a line of the step that runs ends


def piped(*arguments: str, code: str = EVENTS) -> str:
    environ = {**os.environ, "DEPLOY_TOKEN": "pw-planted-12"}
    argv = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(argv, input="", capture_output=True, text=True, timeout=120, env=environ)
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


def on_a_terminal(*arguments: str, code: str = EVENTS, awaited: Sequence[str] = ()) -> str:
    """The output on a terminal of 80 columns. The program gets a line of input when the terminal has shown the next
    text of ``awaited``, and the end of the input after the last one."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    argv = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, env=environ, bufsize=0) as process:
        os.close(theirs)
        assert process.stdin
        output, seen, left = b"", 0, [text.encode() for text in awaited]
        while True:
            while left and (at := output.find(left[0], seen)) >= 0:
                seen = at + len(left.pop(0))
                process.stdin.write(b"\n")
            if not left:
                process.stdin.close()
            if not select.select([ours], [], [], 120)[0]:
                process.kill()
                raise AssertionError(f"not shown: {left}\n{output.decode()}")
            try:
                output += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        os.close(ours)
    assert process.returncode == 0
    return output.decode()


def test_a_pipe_gets_a_line_a_step() -> None:
    assert piped().splitlines() == [
        "resolving the base image",
        "  1 min 01 s  [2/3] the vllm wheel",
        "      cached  [3/3] RUN true",
    ]


def test_verbose_shows_what_steps_print() -> None:
    assert "compiling with ***\nand no end\n" in piped("--verbose")
    assert "[2/3] the vllm wheel" in piped("-v")


def test_transfers_servers_and_measurements_in_a_pipe() -> None:
    assert [re.sub(r"^ *[0-9.]+ s  ", "", line) for line in piped(code=OTHERS).splitlines()] == [
        *("Org/Model: 10 % of 8.0 GB", "Org/Model: 20 % of 8.0 GB", "spark2: has it already"),
        *("loading weights, 40 %", "throughput: 50%, 1 min 03 s left"),
    ]


def test_transfers_servers_and_measurements_on_a_terminal() -> None:
    awaited = ("12 %, 1.0 GB of 8.0 GB", "25 %, 2.0 GB of 8.0 GB", "starting", "loading weights, 50 %", "throughput")
    shown = on_a_terminal(code=OTHERS, awaited=awaited)
    for text in ("40 %, 2.0 GB of 5.0 GB", "25 %, 2.0 GB of 8.0 GB", "spark2: has it already", "starting"):
        assert text in shown
    assert "loading weights, 50 %" in shown
    assert "throughput: 50%, 1 min 03 s left" in shown
    assert "10 % of 8.0 GB" not in shown


def test_an_export_shows_what_is_packed_and_that_it_is_unpacked() -> None:
    shown = on_a_terminal(
        code=EVENTS.replace(
            'report(StepStarted("d", "exporting to image"))\n',
            'report(StepStarted("d", "exporting to image"))\n'
            '        report(LayersPacked("d", 1_300_000_000))\n        sys.stdin.readline()\n'
            '        report(StepProgress("d", "unpacking to docker.io/x:1", 0, 0, False))\n',
        ),
        awaited=(STEP, "1.3 GB packed", "unpacking"),
    )
    assert re.search("exporting to image *1.3 GB packed", shown)
    assert re.search("exporting to image *unpacking", shown)


def test_quiet_says_nothing() -> None:
    assert piped("--quiet") == ""
    assert on_a_terminal("-q") == ""


def test_a_terminal_gets_a_clock_and_how_long_the_step_took_before() -> None:
    output = on_a_terminal(awaited=(STEP, "exporting to image"))
    assert "took 1 min 15 s last time" in output
    assert re.search("0:00:[0-5][0-9]\x1b\\[0m .*took 1 min 15 s last time", output)
    assert "1 min 01 s  [2/3] the vllm wheel" in output
    assert re.search("0:00:[0-5][0-9]\x1b\\[0m exporting to image", output)  # a step that has no time before


@pytest.mark.parametrize("variable", ["1", ""])
def test_no_color(tmp_path: Path, variable: str) -> None:
    """NO_COLOR counts where it is set and not empty, for results and for errors: https://no-color.org."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "builder", "--project", str(tmp_path), "list"]
    environ = {**os.environ, "NO_COLOR": variable, "PYTHONPATH": str(projects.REPOSITORY_ROOT)}
    subprocess.run(argv, stdout=theirs, stderr=theirs, env=environ, timeout=120)
    os.close(theirs)
    output = os.read(ours, 4096).decode()
    os.close(ours)
    assert "no project found" in output
    assert ("\x1b[" in output) == (variable == "")


def test_what_takes_long_without_a_step_moves_and_tells_its_time() -> None:
    code = EVENTS.replace(
        'report(StepStarted("d",',
        "sys.stdin.readline()\n        with task(report, 'checking the image'):\n            time.sleep(0.3)\n"
        '        report(StepStarted("d",',
    ).replace("import Message\n", "import Message, task\n")
    shown = on_a_terminal(code=code, awaited=(STEP, "between steps", "exporting to image"))
    assert "between steps" in shown
    told = re.search(r"  ( *[0-9]+[.][0-9]) s  checking the image", shown)
    assert told
    assert (len(told[1]), float(told[1]) >= 0.3) == (8, True)
    assert shown.index("between steps") < shown.index("checking the image")


def test_a_line_moves_while_a_command_works_in_silence() -> None:
    code = "import sys, time\nfrom builder.cli import progress\n"
    shows = f"{code}with progress.showing('looking at what may go'):\n    "
    shown = on_a_terminal(code=f"{shows}sys.stdin.readline()\n", awaited=("looking at what may go",))
    assert "looking at what may go" in shown
    later = shows.replace("with", "progress.AFTER_SECONDS = 600.0\nwith")
    assert on_a_terminal(code=f"{later}time.sleep(0.1)\n") == ""
    assert piped(code=f"{shows}time.sleep(1.3)\n") == ""
