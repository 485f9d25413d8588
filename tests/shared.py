"""The state that the processes of one test session share: a folder, things that are made once, and turns at the engine.

With pytest-xdist a session is a controller and its workers, else one process. Whoever begins it ends it, however the
tests went: then what was noted for removal is removed, by `tests.leftovers`.
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

VARIABLE = "BUILDER_TEST_SESSION"  # the folder; whatever the tests start inherits it, and is known by it


def begin() -> None:
    """Begins the session of this process, in which workers will take part."""
    os.environ[VARIABLE] = tempfile.mkdtemp(prefix=f"builder-session-{secrets.token_hex(1)}-")


def folder() -> Path:
    """A folder that lasts as long as the session does; outside of pytest, as in a benchmark, as long as the process."""
    if VARIABLE not in os.environ:
        begin()
        atexit.register(end)
    return Path(os.environ[VARIABLE])


def mark() -> str:
    """Two digits by which this session's names are told from those of another one on the same engine."""
    return folder().name.split("-")[2]


def token() -> str:
    """Eight digits for a name that nobody else uses."""
    return mark() + secrets.token_hex(3)


def unique_name() -> str:
    """A name for images or containers that nobody else uses."""
    return f"builder-test-{token()}"


def bridge(number: int) -> tuple[str, str]:
    """The name and address of a bridge for a further engine. ``number`` tells it from those of other tests that may run
    at the same time; bridges of another session have other names."""
    return f"builder-t{number}{mark()}", f"10.{213 + number}.{int(mark(), 16)}.1/24"


def end() -> None:
    shutil.rmtree(folder())
    del os.environ[VARIABLE]


@contextmanager
def locked(name: str, *, shared: bool = False) -> Iterator[None]:
    """Holds a lock of this session. Who holds it ``shared`` holds it beside others who do."""
    with (folder() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
        # Closing alone would leave it to a process that was just forked from this one.
        fcntl.flock(file, fcntl.LOCK_UN)


def once(name: str, make: Callable[[], str]) -> str:
    """The result of ``make`` in the first process that asked for ``name``; others wait for it. Where it raises, the
    next tries again."""
    with locked(name):
        made = folder() / f"{name}.made"
        if not made.exists():
            text = make()
            made.write_text(text, encoding="utf-8")
        return made.read_text(encoding="utf-8")


@contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """A turn at the engine: ``alone``, or beside others. Who waits to be alone is not overtaken."""
    with ExitStack() as stack:
        with locked("queue"):
            stack.enter_context(locked("turn", shared=not alone))
        yield


def remove_at_end(repository: str) -> None:
    """Notes that the images of ``repository`` are to be removed when the session ends."""
    (folder() / "repositories").mkdir(exist_ok=True)
    (folder() / "repositories" / repository).touch()


def used_engine() -> bool:
    """True where a test of this session has asked for the engine."""
    return (folder() / "engine.made").exists()


def stop_engine_at_end() -> None:
    (folder() / "stop-engine").touch()


def repositories() -> list[str]:
    """The notes of `remove_at_end`."""
    return sorted(path.name for path in folder().glob("repositories/*"))


def stops_engine() -> bool:
    return (folder() / "stop-engine").exists()
