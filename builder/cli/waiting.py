"""A line that moves while a command works in silence: what it does, and for how long."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.cli import output, verbosity

if TYPE_CHECKING:
    from collections.abc import Iterator

AFTER_SECONDS = 1.0


@contextmanager
def showing(text: str) -> Iterator[None]:
    """Shows ``text`` with a clock on a terminal, from the moment that the block has taken a second; what draws it is
    imported only then. Elsewhere, and with ``--quiet``, nothing is shown."""
    if verbosity.level() == "quiet" or not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(text, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show(text: str, ended: threading.Event) -> None:
    if ended.wait(AFTER_SECONDS):
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as progress:
        progress.add_task(output.task_text(text), total=None)
        ended.wait()
