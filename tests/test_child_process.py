from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.base import processes

# Starts a child like builder does, prints its process id, and is then killed.
PARENT = """\
import subprocess
import sys
import time
from builder.base import processes
child = subprocess.Popen([*processes.tied_to_parent(), "sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def program(process: int) -> str:
    """The name of the program that a process runs. Empty if the process has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    return "" if "State:\tZ" in status else status.split()[1]


def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    end = time.monotonic() + 30
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        while program(child) != "sleep" and time.monotonic() < end:
            time.sleep(0.02)  # setpriv becomes sleep
        os.kill(parent.pid, signal.SIGKILL)
    while program(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not program(child)


def test_without_setpriv_there_is_no_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert processes.tied_to_parent() == []


def test_a_child_reads_and_writes_what_has_no_name() -> None:
    with processes.memory_file() as given, processes.memory_file() as answer:
        given.write(b"some lines\n")
        given.seek(0)
        subprocess.run(["cat"], stdin=given, stdout=answer, check=True)
        answer.seek(0)
        assert answer.read() == b"some lines\n"
        assert "memfd" in str(Path(f"/proc/self/fd/{given.fileno()}").readlink())
