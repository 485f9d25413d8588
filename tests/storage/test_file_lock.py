"""One holder at a time, whoever waits is told, and a holder that is killed lets go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.files import (
    LockFileError,
    LockHeldError,
    folder_locked,
    locked,
    open_locked_at_once,
    open_locked_to_append,
)

if TYPE_CHECKING:
    from collections.abc import Callable


if TYPE_CHECKING:
    Fork = Callable[[Callable[[], object]], int]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / ".images.lock.writer"


def hold(file: Path, seconds: float, ready: int) -> Callable[[], None]:
    """Holds ``file`` that long, after one byte to the descriptor ``ready``."""

    def run() -> None:
        with locked(file, wait_seconds=5, on_wait=None):
            os.write(ready, b".")
            time.sleep(seconds)

    return run


def start(fork: Fork, file: Path, seconds: float) -> int:
    """A process that holds ``file`` by now."""
    reader, writer = os.pipe()
    child = fork(hold(file, seconds, writer))
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return child


def test_whoever_waits_too_long_learns_who_holds_it(file: Path, fork: Fork) -> None:
    child = start(fork, file, 30)
    told: list[float] = []
    began = time.monotonic()
    with (
        pytest.raises(LockHeldError) as raised,
        locked(file, wait_seconds=0.6, on_wait=lambda: told.append(time.monotonic())),
    ):
        pytest.fail("held twice")
    assert 0.6 <= time.monotonic() - began < 3
    assert len(told) == 1
    assert told[0] - began >= 0.3
    assert raised.value.holder == child


def test_it_can_be_asked_without_waiting(file: Path, fork: Fork) -> None:
    start(fork, file, 30)
    with pytest.raises(LockHeldError), locked(file, wait_seconds=0, on_wait=None):
        pytest.fail("held twice")


def test_it_goes_on_as_soon_as_it_is_free(file: Path, fork: Fork) -> None:
    start(fork, file, 0.5)
    told: list[str] = []
    with locked(file, wait_seconds=30, on_wait=lambda: told.append("waiting")):
        assert file.read_text() == f"{os.getpid()}\n"
    assert told == ["waiting"]


def test_of_many_that_take_turns_each_is_waited_for(file: Path, fork: Fork) -> None:
    reader, writer = os.pipe()

    def take_turns() -> None:
        """Holds the file all the time, so that nobody gets in between, in the name of one process after the other."""
        with locked(file, wait_seconds=5, on_wait=None):
            os.write(writer, b".")
            for process in range(1001, 1008):
                file.write_text(f"{process}\n")
                time.sleep(0.5)

    fork(take_turns)
    os.read(reader, 1)
    began = time.monotonic()
    with locked(file, wait_seconds=2.5, on_wait=None):
        assert time.monotonic() - began > 2.5
    os.close(reader)
    os.close(writer)


def test_nobody_is_told_of_a_moment(file: Path, fork: Fork) -> None:
    start(fork, file, 0.05)
    with locked(file, wait_seconds=30, on_wait=lambda: pytest.fail("told")):
        pass


def test_a_killed_holder_lets_go(file: Path, fork: Fork) -> None:
    child = start(fork, file, 30)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(file, wait_seconds=1, on_wait=lambda: pytest.fail("told")):
        pass


def test_programs_that_were_started_meanwhile_hold_nothing(file: Path) -> None:
    with locked(file, wait_seconds=0, on_wait=None):
        sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        with locked(file, wait_seconds=0, on_wait=None):
            pass
    finally:
        sleeper.communicate(b"\n")


def test_it_is_let_go_when_the_block_fails(file: Path) -> None:
    with pytest.raises(KeyError), locked(file, wait_seconds=0, on_wait=None) as taken:
        raise KeyError
    assert taken.released
    assert file.read_text() == ""
    with locked(file, wait_seconds=0, on_wait=None) as again:
        assert not again.released


def test_a_file_of_another_user_can_be_locked(public_folder: Path, fork: Fork) -> None:
    file = public_folder / ".images.lock.writer"
    file.touch(0o444)

    def run() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        with locked(file, wait_seconds=0, on_wait=None):
            pass

    assert os.waitpid(fork(run), 0)[1] == 0


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(LockFileError, match=r"No such file"),
        locked(tmp_path / "none" / "x", wait_seconds=0, on_wait=None),
    ):
        pytest.fail("held")


def test_a_folder_of_another_user(public_folder: Path, fork: Fork) -> None:
    public_folder.chmod(0o555)

    def run() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        with (
            pytest.raises(LockFileError, match="Permission denied"),
            locked(public_folder / ".images.lock.writer", wait_seconds=0, on_wait=None),
        ):
            pytest.fail("held")

    status = os.waitpid(fork(run), 0)[1]
    public_folder.chmod(0o755)
    assert status == 0


def test_a_link_is_not_followed(tmp_path: Path, file: Path) -> None:
    file.symlink_to(tmp_path / "other")
    with pytest.raises(LockFileError), locked(file, wait_seconds=0, on_wait=None):
        pytest.fail("held")
    assert not Path(tmp_path / "other").exists()


def test_without_a_limit_it_waits_for_as_long_as_it_takes(file: Path, fork: Fork) -> None:
    start(fork, file, 0.2)
    with locked(file):
        pass


def test_a_folder_is_held_under_whatever_name_it_has(tmp_path: Path, fork: Fork) -> None:
    (tmp_path / "before").mkdir()
    with folder_locked(tmp_path / "before"):
        (tmp_path / "before").rename(tmp_path / "after")
        with pytest.raises(BlockingIOError), folder_locked(tmp_path / "after"):
            pytest.fail("held twice")
    with folder_locked(tmp_path / "after"):
        pass
    with pytest.raises(FileNotFoundError), folder_locked(tmp_path / "before"):
        pytest.fail("held")


def test_a_file_that_is_held_while_it_is_open(file: Path) -> None:
    first = open_locked_at_once(file)
    with pytest.raises(BlockingIOError):
        open_locked_at_once(file)
    os.close(first)
    os.close(open_locked_at_once(file))


@pytest.mark.parametrize("end", ["renamed", "removed"])
def test_whoever_waited_for_a_file_that_is_gone_opens_the_next(file: Path, fork: Fork, end: str) -> None:
    """Otherwise it would write into what has another name by now, or none."""
    reader, writer = os.pipe()
    go, come = os.pipe()

    def wait() -> None:
        os.read(go, 1)
        waited = open_locked_to_append(file)
        os.write(writer, b"." if os.path.samestat(os.fstat(waited), file.stat()) else b"x")

    child = fork(wait)  # before the file is opened: what a child inherits it holds, too
    descriptor = open_locked_to_append(file)
    os.write(come, b".")
    time.sleep(0.2)
    if end == "renamed":
        file.rename(file.with_name("whole"))
    else:
        file.unlink()
    os.close(descriptor)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 1) == b"."
