"""A build's progress: a live line for each step that runs on a terminal, a line for each step that ended elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

import click

from builder.cli import words
from builder.engine.progress import StepAmount, StepFinished, StepStarted, title
from builder.events import Said


class PlainProgress:
    """A line a step, for logs and pipes."""

    def __init__(self) -> None:
        self._ended: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __call__(self, event: object) -> None:
        if isinstance(event, Said):
            click.echo(event.text, err=True)
        elif isinstance(event, StepFinished) and _worth_a_line(event) and event.step not in self._ended:
            self._ended.add(event.step)
            click.echo(_ended_line(event), err=True)


class LiveProgress:
    """Lines for the steps that ended and, below them, one with a clock for each that runs."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._console = Console(stderr=True, highlight=False)
        text = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        columns = (SpinnerColumn(), TimeElapsedColumn(), text, TextColumn("{task.fields[amount]}"))
        self._progress = Progress(*columns, console=self._console, transient=True, expand=True)
        self._running: dict[str, TaskID] = {}
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: object) -> None:
        if isinstance(event, Said):
            self._console.print(event.text, markup=False)
        elif isinstance(event, StepStarted) and not event.internal:
            self._running[event.step] = self._progress.add_task(_escaped(title(event.name)), total=None, amount="")
        elif isinstance(event, StepAmount) and event.step in self._running and event.total:
            amount = f"{words.size(event.current)} of {words.size(event.total)}"
            self._progress.update(self._running[event.step], amount=amount)
        elif isinstance(event, StepFinished) and event.step in self._running:
            self._progress.remove_task(self._running.pop(event.step))
            if _worth_a_line(event):
                self._console.print(_ended_line(event), markup=False, no_wrap=True, overflow="ellipsis")


def shown() -> PlainProgress | LiveProgress:
    """The progress display that suits where standard error goes."""
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()


def _worth_a_line(event: StepFinished) -> bool:
    return not event.internal and (event.cached or bool(event.error) or event.seconds >= 0.05)


def _ended_line(event: StepFinished) -> str:
    word = "failed" if event.error else "cached" if event.cached else words.duration(event.seconds)
    return f"{word:>12}  {title(event.name)}"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
