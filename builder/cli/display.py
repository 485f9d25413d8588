"""Where a verb's events go while it works: nowhere, line by line, or to what moves on a terminal."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from builder.cli import output, verbosity
from builder.events import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from builder.events import Report

    # What moves, on this console, for as long as it is entered.
    Live = Callable[[Console], AbstractContextManager[Report]]


@contextmanager
def shown(live: Live, plain: Report) -> Iterator[Report]:
    """What takes a verb's events: ``live`` on a terminal, ``plain`` elsewhere and where everything is to be seen,
    nothing where only the result is. A `Message` is shown among them as a line."""
    level = verbosity.level()
    if level == "quiet":
        yield lambda _: None
    elif level == "normal" and sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        with live(console) as show:
            yield _with_lines(lambda text: output.on_console(console, text), show)
    else:
        yield _with_lines(output.note, plain)


def _with_lines(line: Callable[[str], None], other: Report) -> Report:
    def report(event: object) -> None:
        if isinstance(event, Message):
            line(event.text)
        else:
            other(event)

    return report
