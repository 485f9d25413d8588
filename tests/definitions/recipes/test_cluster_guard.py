"""The guard of several nodes, each a process here: what ends one ends the others, and nothing else does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from builder.definitions import cluster, guard_script
from tests.commands.serving import free_port

pytestmark = pytest.mark.slow

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
Guarded = subprocess.Popen[str]
Start = Callable[..., Guarded]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def start(port: int) -> Iterator[Start]:
    """Starts the guard of a rank round some Python."""
    running: list[Guarded] = []

    def run(rank: int, code: str = SLEEP, address: str = "127.0.0.1") -> Guarded:
        command = [sys.executable, "-c", code]
        argv = [sys.executable, "-IS", guard_script.__file__, str(rank), address, str(port), "chat", *command]
        # In a group of its own, so that a guard that is killed leaves nothing.
        running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, process_group=0))
        return running[-1]

    yield run
    for process in running:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        assert process.stdout
        process.stdout.close()


def joined(start: Start, code: str = SLEEP) -> tuple[Guarded, Guarded, Guarded]:
    """A head and two further nodes that are connected."""
    further = start(1, code), start(2)
    head = start(0)
    time.sleep(3)
    assert [process.poll() for process in (head, *further)] == [None, None, None]
    return head, *further


def test_a_killed_node_ends_all_of_them(start: Start) -> None:
    head, first, second = joined(start)
    os.killpg(first.pid, 9)
    for process in (head, second):
        assert process.wait(10) == 1
        assert cluster.ENDED_ELSEWHERE in process.communicate()[0].splitlines()


def test_a_head_that_ends_ends_the_others(start: Start) -> None:
    head, first, second = joined(start)
    head.terminate()
    assert head.wait(10) == 128 + 15
    assert (first.wait(10), second.wait(10)) == (1, 1)


def test_a_command_that_ends_by_itself_gives_its_code(start: Start) -> None:
    head, first, second = joined(start, "import time; time.sleep(4); raise SystemExit(7)")
    assert first.wait(10) == 7
    assert (head.wait(10), second.wait(10)) == (1, 1)


def test_a_command_that_does_not_end_is_killed(start: Start) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    first, head = start(1, stubborn), start(0)
    time.sleep(3)
    head.terminate()
    head.wait(10)
    assert first.wait(40) == 1


def test_strangers_end_nothing(start: Start, port: int) -> None:
    head, first, _ = joined(start)
    for greeting in (b"", b"GET / HTTP/1.0\r\n\r\n", b"other"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(greeting)
    time.sleep(2)
    assert (head.poll(), first.poll()) == (None, None)


def test_nodes_wait_for_the_head_and_meet_again(start: Start) -> None:
    head, first, second = joined(start)
    os.killpg(head.pid, 9)
    assert (first.wait(10), second.wait(10)) == (1, 1)
    joined(start)


def test_an_address_of_version_6(start: Start) -> None:
    first, head = start(1, address="::1"), start(0, address="::1")
    time.sleep(3)
    os.killpg(first.pid, 9)
    assert head.wait(10) == 1


@pytest.mark.parametrize(("meeting", "expected"), [("29501", 29511), ("65530", 65520), ("x", 10)])
def test_the_guard_has_a_port_beside_the_one_at_which_nodes_meet(meeting: str, expected: int) -> None:
    assert cluster.port(meeting) == expected
