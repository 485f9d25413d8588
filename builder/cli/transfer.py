"""How far a transfer has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from builder.cli import verbosity, words
from builder.cli.say import say
from builder.events import Moved, Said

if TYPE_CHECKING:
    from rich.progress import TaskID

    from builder.events import Report

# A log has ten lines for a model, however large it is.
_STEP = 10


@contextmanager
def shown() -> Iterator[Report]:
    """What takes a verb's events, as it suits where standard error goes and how much the person wants to see."""
    if sys.stderr.isatty() and verbosity.level() != "quiet":
        with _live() as report:
            yield report
    else:
        yield _plain()


def _plain() -> Report:
    said: dict[str, int] = {}

    def report(event: object) -> None:
        if not isinstance(event, Moved):
            say(event)
            return
        step = 100 * event.current // max(event.total, 1) // _STEP * _STEP
        if step > said.setdefault(event.what, 0) and verbosity.level() != "quiet":
            said[event.what] = step
            click.echo(f"{event.what}: {step} % of {words.size(event.total)}", err=True)

    return report


@contextmanager
def _live() -> Iterator[Report]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True, highlight=False)
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    text = TextColumn("{task.description}")
    tasks: dict[str, TaskID] = {}
    with Progress(text, BarColumn(None), *columns, console=console, transient=True, expand=True) as progress:

        def report(event: object) -> None:
            if isinstance(event, Said):
                console.print(event.text, markup=False)
            elif isinstance(event, Moved):
                if event.what not in tasks:
                    tasks[event.what] = progress.add_task(escape(event.what), completed=event.current)
                progress.update(tasks[event.what], completed=event.current, total=event.total)

        yield report
