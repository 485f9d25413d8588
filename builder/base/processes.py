"""Child processes that end with the program, free ports, and the files of /proc on a machine's memory and GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, TypeVar

if TYPE_CHECKING:
    from collections import deque
    from queue import SimpleQueue

N = TypeVar("N")
S = TypeVar("S")
T = TypeVar("T")

# Child processes that never outlive this one.


def memory_file() -> BinaryIO:
    """A file in memory for the input or the output of a child process. It has no name, so nothing is left when this
    process ends, and no folder for temporary files is needed."""
    import os

    return os.fdopen(os.memfd_create("builder"), "w+b")


def tied_to_parent() -> list[str]:
    """Returns a prefix for an argument vector. With it, the kernel sends SIGTERM to the process when its parent dies.

    Otherwise a child such as buildx or git continues until it writes to a closed pipe, which may take an hour. setpriv
    is part of util-linux, which Debian and Ubuntu always have; on other systems the prefix is empty.
    """
    from shutil import which

    return ["setpriv", "--pdeathsig", "TERM", "--"] if which("setpriv") else []


def read_ahead(stream: IO[str]) -> Iterator[str]:
    """The lines of ``stream`` as they come. A thread takes them at once, whatever the reader does meanwhile, so that no
    child process waits for it; it closes the stream at its end."""
    from queue import SimpleQueue
    from threading import Thread

    lines: SimpleQueue[str | None] = SimpleQueue()

    def take() -> None:
        try:
            with stream:
                for line in stream:
                    lines.put(line)
        finally:
            lines.put(None)

    Thread(target=take, daemon=True).start()
    return iter(lines.get, None)


def _in_threads(waiting: deque[tuple[N, Callable[[], T]]], at_once: int) -> SimpleQueue[tuple[N, T | BaseException]]:
    """Starts threads that take the named tasks from ``waiting`` until it is empty. The queue gets the name of each task
    that ends, with its result or error. The end of the process does not wait for unfinished tasks."""
    from queue import SimpleQueue
    from threading import Thread

    ended: SimpleQueue[tuple[N, T | BaseException]] = SimpleQueue()

    def run() -> None:
        with suppress(IndexError):
            while True:
                name, task = waiting.popleft()
                try:
                    ended.put((name, task()))
                except BaseException as error:  # noqa: BLE001 - the thread that waits decides
                    ended.put((name, error))

    for _ in range(min(at_once, len(waiting))):
        Thread(target=run, daemon=True).start()
    return ended


def in_threads(tasks: Mapping[str, Callable[[], T]]) -> SimpleQueue[tuple[str, T | BaseException]]:
    """Starts all tasks at once. The queue gets the name of each task that ends, with its result or error. The end of
    the process does not wait for unfinished tasks."""
    from collections import deque

    return _in_threads(deque(tasks.items()), len(tasks))


def in_parallel(work: Callable[[S], T], items: Iterable[S], at_once: int) -> Iterator[T]:
    """Yields the result of ``work`` for each item, in the order of the items. Raises the first error in that order.
    After an error or ^C, no further item begins, and nothing waits for the items that have begun, as a pool of
    `concurrent.futures` would."""
    from collections import deque
    from functools import partial

    waiting: deque[tuple[int, Callable[[], T]]] = deque(
        (number, partial(work, item)) for number, item in enumerate(items)
    )
    count = len(waiting)
    ended = _in_threads(waiting, at_once)
    results: dict[int, T | BaseException] = {}
    try:
        for number in range(count):
            while number not in results:
                results.update([ended.get()])
            if isinstance(result := results.pop(number), BaseException):
                raise result
            yield result
    finally:
        waiting.clear()


def free_port() -> int:
    """Returns a port on 127.0.0.1 that nothing uses now. It is below 32768, where Linux takes the ports of outgoing
    connections (ip_local_port_range, ip-sysctl.rst): a server may take a minute to bind it."""
    import random
    import socket

    while True:
        port = random.randrange(20000, 32768)  # noqa: S311 (no secret)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


# Files of /proc that describe a machine's memory and its GPUs.

MEMORY = "meminfo"
GPUS = "driver/nvidia/gpus/*/information"
"""The file of each GPU, by its driver, with a line such as ``Model: NVIDIA GB10``."""

_SIZE = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


def text(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def sizes(meminfo: str) -> dict[str, int]:
    """The sizes in the text of /proc/meminfo (proc_meminfo(5)), in bytes, by their names."""
    return {name: int(number) * 1024 for name, number in _SIZE.findall(meminfo)}
