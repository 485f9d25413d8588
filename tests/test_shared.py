"""The shared state of the processes of a test session, and the search for their leftovers."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import pytest

from builder.engine import images
from builder.engine.client import Endpoint
from tests import leftovers, processes, shared, stock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A separate session for this test."""
    folder = tmp_path / "builder-session-ab-0"
    folder.mkdir()
    monkeypatch.setenv(shared.VARIABLE, str(folder))
    yield folder


def make(folder: Path) -> str:
    """Makes something slowly, and records the call."""
    os.environ[shared.VARIABLE] = str(folder)

    def slowly() -> str:
        time.sleep(0.2)
        with (folder / "times").open("a") as file:
            file.write("made\n")
        return f"by {os.getpid()}"

    return shared.once("thing", slowly)


@pytest.mark.slow
def test_what_is_shared_is_made_once(own: Path) -> None:
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(make, [own] * 3))
    assert len(set(answers)) == 1
    assert (own / "times").read_text() == "made\n"


def test_what_could_not_be_made_is_tried_again(own: Path) -> None:
    def fail() -> str:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        shared.once("thing", fail)
    assert shared.once("thing", lambda: "made") == "made"


@pytest.mark.slow
def test_whoever_is_alone_waits_for_the_others_and_is_not_overtaken(own: Path) -> None:
    order: list[str] = []

    def take(name: str, *, alone: bool) -> threading.Thread:
        def run() -> None:
            with shared.turn(alone=alone):
                order.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with shared.turn(alone=False):
        beside = take("beside", alone=False)
        beside.join(processes.BUSY)
        assert order == ["beside"]
        threads = [take("alone", alone=True)]
        processes.await_lock_wait(os.getpid())
        threads.append(take("later", alone=False))
        processes.await_lock_wait(os.getpid(), 2)
        assert order == ["beside"]
    for thread in threads:
        thread.join(processes.BUSY)
    assert order == ["beside", "alone", "later"]


def test_names_are_of_their_session(own: Path) -> None:
    names = {shared.unique_name() for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("builder-test-ab") for name in names)


@pytest.mark.slow
def test_a_process_that_goes_on_is_found_with_its_test(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_GRACE", 0.3)
    assert leftovers.processes() == []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"here\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"here\n", "its environment is not there before it runs"
        (remains,) = leftovers.processes()
        process.kill()
    assert remains.startswith(f"process {process.pid}, cat, of tests/test_shared.py::test_a_process_that_goes_on")
    assert leftovers.processes() == []


@pytest.mark.engine
def test_an_image_that_stays_is_found(endpoint: Endpoint, own: Path) -> None:
    name = shared.unique_name()
    stock.load(endpoint, f"{name}:1", ({"a": name.encode()},))
    try:
        assert leftovers.in_engine(endpoint) == [f"image {name}"]
    finally:
        images.remove_image(endpoint, f"{name}:1")
    assert leftovers.in_engine(endpoint) == []
