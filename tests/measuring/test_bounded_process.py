"""Programs of others: they end as they do by themselves, and nothing that they started stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.lab.measure import own_script
from builder.lab.measure.own_script import EndedProcess
from tests import projects

pytestmark = pytest.mark.slow

# Leaves its process group and its session, as a server that is started in the background does, and notes its process.
DAEMON = "setsid sh -c 'echo $$ >> pids; trap \"\" TERM; exec sleep 600' & while ! test -s pids; do sleep 0.02; done"


def run(folder: Path, text: str, seconds: float = 60) -> EndedProcess:
    return own_script.run_bounded(["sh", "-c", text], folder=folder, environ=os.environ, seconds=seconds)


def is_gone(folder: Path) -> bool:
    """True where every process that was noted has ended; one that is ending gets a moment."""
    pids = [int(line) for line in (folder / "pids").read_text().split()]
    end = time.monotonic() + 5
    while time.monotonic() < end and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.02)
    return bool(pids) and not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(("text", "code"), [("exit 0", 0), ("exit 125", 125), ("kill -9 $$", -9), ("kill $$", -15)])
def test_it_ends_as_the_program_did(tmp_path: Path, text: str, code: int) -> None:
    ended = run(tmp_path, f"echo out; echo err >&2; {text}")
    assert (ended.exit_code, ended.cause, ended.output, ended.messages) == (code, "itself", b"out\n", b"err\n")


def test_what_it_started_ends_with_it_in_whatever_session(tmp_path: Path) -> None:
    ended = run(tmp_path, f"{DAEMON}; echo done")
    assert (ended.exit_code, ended.output) == (0, b"done\n")
    assert is_gone(tmp_path)


def test_what_it_started_ends_when_its_time_is_up(tmp_path: Path) -> None:
    assert run(tmp_path, f"{DAEMON}; sleep 600", seconds=2).cause == "time"
    assert is_gone(tmp_path)


def test_what_it_started_ends_when_this_process_is_killed(tmp_path: Path) -> None:
    call = "import os; from pathlib import Path; from builder.lab.measure import own_script; "
    call += "import sys; own_script.run_bounded(['sh', '-c', sys.argv[1]], folder=Path(sys.argv[2]), "
    call += "environ=os.environ, seconds=60)"
    argv = [sys.executable, "-c", call, f"{DAEMON}; sleep 600", str(tmp_path)]
    with subprocess.Popen(argv) as process:
        end = time.monotonic() + 30
        while time.monotonic() < end and not (tmp_path / "pids").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert is_gone(tmp_path)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    ended = own_script.run_bounded(["./missing"], folder=tmp_path, environ=os.environ, seconds=10)
    assert (ended.exit_code, ended.last_lines) == (127, "./missing: No such file or directory")
    projects.write(tmp_path / "here", "#!/bin/sh\nexit 3\n")
    (tmp_path / "here").chmod(0o755)
    assert own_script.run_bounded(["./here"], folder=tmp_path, environ=os.environ, seconds=10).exit_code == 3
