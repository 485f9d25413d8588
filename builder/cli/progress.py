"""A build's progress: a live line for each step that runs on a terminal, a line for each step that ended elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import click

from builder.cli import verbosity, words
from builder.engine.progress import StepAmount, StepFinished, StepOutput, StepStarted, label, title
from builder.engine.transfer import Amount
from builder.events import Said

_REGISTRY = "registry"


class PlainProgress:
    """A line for each step that ended, for logs and pipes; with ``--verbose`` what the steps print as well."""

    def __init__(self, level: verbosity.Level) -> None:
        self._level = level
        self._ended: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __call__(self, event: object) -> None:
        if self._level == "quiet":
            return
        if isinstance(event, Said):
            click.echo(event.text, err=True)
        elif isinstance(event, StepOutput) and self._level == "verbose":
            click.echo(event.text, err=True, nl=False)
        elif isinstance(event, StepFinished) and _worth_a_line(event) and event.step not in self._ended:
            self._ended.add(event.step)
            click.echo(_ended_line(event), err=True)


class LiveProgress:
    """Lines for the steps that ended and, below them, one with a clock for each that runs, and the time that it took
    the last time (``expected``, in seconds by the step's label)."""

    def __init__(self, expected: Mapping[str, float]) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._console = Console(stderr=True, highlight=False)
        text = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        columns = (SpinnerColumn(), TimeElapsedColumn(), text, TextColumn("{task.fields[amount]}"))
        self._progress = Progress(*columns, console=self._console, transient=True, expand=True)
        self._running: dict[str, TaskID] = {}
        self._expected = expected

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
            last = self._expected.get(label(event.name))
            amount = f"took {words.duration(last)} before" if last else ""
            self._running[event.step] = self._progress.add_task(_escaped(title(event.name)), total=None, amount=amount)
        elif isinstance(event, StepAmount) and event.step in self._running and event.total:
            amount = f"{words.size(event.current)} of {words.size(event.total)}"
            self._progress.update(self._running[event.step], amount=amount)
        elif isinstance(event, StepFinished) and event.step in self._running:
            self._progress.remove_task(self._running.pop(event.step))
            if _worth_a_line(event):
                self._console.print(_ended_line(event), markup=False, no_wrap=True, overflow="ellipsis")
        elif isinstance(event, Amount):
            self._moved(event)

    def _moved(self, amount: Amount) -> None:
        """A line for what moves to or from the registry."""
        if _REGISTRY not in self._running:
            self._running[_REGISTRY] = self._progress.add_task(_REGISTRY, total=None, amount="")
        self._progress.update(self._running[_REGISTRY], amount=words.amount(amount))


def shown(expected: Mapping[str, float]) -> PlainProgress | LiveProgress:
    """The progress display that suits where standard error goes, and how much the person wants to see."""
    level = verbosity.level()
    return LiveProgress(expected) if sys.stderr.isatty() and level == "normal" else PlainProgress(level)


def _worth_a_line(event: StepFinished) -> bool:
    return not event.internal and (event.cached or bool(event.error) or event.seconds >= 0.05)


def _ended_line(event: StepFinished) -> str:
    word = "failed" if event.error else "cached" if event.cached else words.duration(event.seconds)
    return f"{word:>12}  {title(event.name)}"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
