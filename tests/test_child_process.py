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
child = subprocess.Popen([*processes.tied_to_parent(), "sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""


def program(process: int) -> str:
    """The name of the program that a process runs. Empty if the process has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    return "" if "State:\tZ" in status else status.split()[1]


def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    end = time.monotonic() + 120
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


def test_parallel_results_come_in_their_order_and_only_so_many_at_once() -> None:
    at_once: set[int] = set()

    def work(item: int) -> int:
        at_once.add(item)
        assert len(at_once) <= 3
        time.sleep(0.02 if item % 2 else 0.001)
        at_once.remove(item)
        return item * 10

    assert list(processes.in_parallel(work, range(12), 3)) == [item * 10 for item in range(12)]
    assert list(processes.in_parallel(work, [], 3)) == []


def test_an_error_in_parallel_work_waits_for_no_other_and_begins_no_other() -> None:
    begun: list[str] = []

    def work(item: str) -> str:
        begun.append(item)
        if item == "fails":
            raise ZeroDivisionError
        time.sleep(600)
        return item

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        list(processes.in_parallel(work, ["fails", *(f"waits {number}" for number in range(20))], 2))
    assert time.monotonic() - began < 120
    assert len(begun) <= 3


# Prints a line when its work has begun.
WAITING = """\
import os, time
from builder.base import processes
def work(item):
    os.write(1, b"begun\\n")  # the lines of threads that print at once run together
    time.sleep(600)
list(processes.in_parallel(work, range(20), 4))
"""


def test_an_interrupt_waits_for_no_parallel_work() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert time.monotonic() - began < 120
