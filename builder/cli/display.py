"""The choice of reporter for a command's events: none, line by line, or a live display on a terminal."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from builder.cli import output, verbosity
from builder.events import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from builder.events import Report

    # Starts a live display on a console, for the duration of the context.
    Live = Callable[[Console], AbstractContextManager[Report]]


@contextmanager
def reporter(live: Live, plain: Report) -> Iterator[Report]:
    """Returns the reporter of a command's events: ``live`` on a terminal, ``plain`` elsewhere and with ``--verbose``,
    none with ``--quiet``. It prints a `Message` as a line."""
    level = verbosity.level()
    if level == "quiet":
        yield lambda _: None
    elif level == "normal" and sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        with live(console) as show:
            yield _with_lines(lambda text: output.print_on_console(console, text), show)
    else:
        yield _with_lines(output.print_note, plain)


@contextmanager
def reporter_from(first: type, live: Live, plain: Callable[[], Report]) -> Iterator[Report]:
    """As `reporter`, but nothing except a `Message` is printed before the first event of the type ``first``, and what
    the display imports is imported only then: rich takes 50 ms, and much of a command's work needs no clock."""
    with ExitStack() as stack:
        current: Report = output.print_message

        def report_late(event: object) -> None:
            nonlocal current, first
            if isinstance(event, first):
                first = type(None)
                current = stack.enter_context(reporter(live, plain()))
            current(event)

        yield report_late


def _with_lines(line: Callable[[str], None], other: Report) -> Report:
    def report(event: object) -> None:
        if isinstance(event, Message):
            line(event.text)
        else:
            other(event)

    return report
