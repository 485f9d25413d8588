"""Fixtures: child processes of a test, and a folder that processes of other users may use."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """An empty folder that every user can read, unlike pytest's folders."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def fork() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Starts a child process that runs a function and ends, and returns its process id. No child outlives the test."""
    children: list[int] = []

    def start(run: Callable[[], object]) -> int:
        child = os.fork()
        if not child:
            try:
                run()
                os._exit(0)
            except BaseException:  # noqa: BLE001  # a child that returned would run the rest of the tests
                traceback.print_exc()
                os._exit(1)
        children.append(child)
        return child

    yield start
    for child in children:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
