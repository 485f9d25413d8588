"""How far images are on their way: a line for each on a terminal, a line for each that arrived elsewhere."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Self

import click

from builder.cli import verbosity, words
from builder.engine.transfer import Amount
from builder.events import Said
from builder.verbs.copying import OnNode, Outcome


class PlainTransfers:
    """What is said, and a line for each node at its end."""

    def __init__(self, level: verbosity.Level) -> None:
        self._level = level

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
        elif isinstance(event, OnNode) and isinstance(event.event, Outcome):
            click.echo(f"{event.node}: {outcome_words(event.event)}", err=True)


class LiveTransfers:
    """A bar for each transfer, by node; one to or from the registry is called so."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
        self._bars: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: object) -> None:
        where, what = (event.node, event.event) if isinstance(event, OnNode) else ("registry", event)
        with self._lock:
            if isinstance(what, Said):
                self._console.print(what.text, markup=False)
            elif isinstance(what, Amount):
                self._show(where, what)
            elif isinstance(what, Outcome):
                if where in self._bars:
                    self._progress.remove_task(self._bars.pop(where))
                self._console.print(f"{where}: {outcome_words(what)}", markup=False)

    def _show(self, where: str, amount: Amount) -> None:
        if where not in self._bars:
            self._bars[where] = self._progress.add_task(where, total=None, amount="")
        self._progress.update(
            self._bars[where],
            completed=amount.current,
            total=amount.total or None,
            amount=words.amount(amount),
        )


def shown() -> PlainTransfers | LiveTransfers:
    """The display that suits where standard error goes, and how much the person wants to see."""
    level = verbosity.level()
    return LiveTransfers() if sys.stderr.isatty() and level == "normal" else PlainTransfers(level)


def outcome_words(outcome: Outcome) -> str:
    """An outcome in a few words."""
    if outcome.error:
        return f"failed: {outcome.error.message}"
    if outcome.moved is None:
        return "has it already"
    return f"has it now, {words.layers(outcome.moved)} moved in {words.duration(outcome.seconds)}"
