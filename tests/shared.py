"""The shared state of the processes of a test session: a folder, resources made once, and turns at the engine.

With pytest-xdist, a session is a controller and its workers; otherwise it is one process. The process that begins the
session also ends it, whatever the results of the tests. It then removes everything that was registered for removal.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VARIABLE = "BUILDER_TEST_SESSION"  # the folder; processes of the tests inherit it, and are found by it


def begin() -> None:
    """Begins the session of this process and its workers."""
    os.environ[VARIABLE] = tempfile.mkdtemp(prefix=f"builder-session-{secrets.token_hex(1)}-")


def folder() -> Path:
    """A folder that exists until the session ends; outside pytest, as in a benchmark, until the process ends."""
    if VARIABLE not in os.environ:
        begin()
        atexit.register(end)
    return Path(os.environ[VARIABLE])


def mark() -> str:
    """Two digits that distinguish the names of this session from other sessions on the same engine."""
    return folder().name.split("-")[2]


def token() -> str:
    """Eight digits for a unique name."""
    return mark() + secrets.token_hex(3)


def unique_name() -> str:
    """A unique name for images or containers."""
    return f"builder-test-{token()}"


def bridge(number: int) -> tuple[str, str]:
    """The name and address of a bridge for an additional engine. ``number`` must differ between tests that may run at
    the same time. Other sessions have other bridge names."""
    return f"builder-t{number}{mark()}", f"10.{213 + number}.{int(mark(), 16)}.1/24"


def end() -> None:
    shutil.rmtree(folder())
    del os.environ[VARIABLE]


@contextmanager
def locked(name: str, *, shared: bool = False) -> Iterator[None]:
    """Holds a lock of this session. Several processes may hold a ``shared`` lock."""
    with (folder() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
        # A process that was just forked from this one has a copy of the descriptor: closing alone would not unlock.
        fcntl.flock(file, fcntl.LOCK_UN)


def once(name: str, make: Callable[[], str]) -> str:
    """The result of ``make`` in the first process that asked for ``name``; other processes wait for it. If ``make``
    raises an error, the next process tries again."""
    with locked(name):
        made = folder() / f"{name}.made"
        if not made.exists():
            text = make()
            made.write_text(text, encoding="utf-8")
        return made.read_text(encoding="utf-8")


@contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Waits for a turn at the engine, ``alone`` or with others. A process that waits to be alone keeps its place."""
    with ExitStack() as stack:
        with locked("queue"):
            stack.enter_context(locked("turn", shared=not alone))
        yield


def remove_at_end(repository: str) -> None:
    """Registers the images of ``repository`` for removal at the end of the session."""
    (folder() / "repositories").mkdir(exist_ok=True)
    (folder() / "repositories" / repository).touch()


def used_engine() -> bool:
    """True if a test of this session has used the engine."""
    return (folder() / "engine.made").exists()


def stop_engine_at_end() -> None:
    (folder() / "stop-engine").touch()


def repositories() -> list[str]:
    """The repositories that `remove_at_end` registered."""
    return sorted(path.name for path in folder().glob("repositories/*"))


def stops_engine() -> bool:
    return (folder() / "stop-engine").exists()
