"""A build's progress: a live line for each step that runs on a terminal, a line for each step that ended elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder import humanize
from builder.building.step_times import StepTimes
from builder.cli import display, transfer_text, verbosity
from builder.cli.output import print_line, print_log, task_text
from builder.cli.terminal_text import visible
from builder.events import TaskFinished, TaskStarted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console
    from rich.progress import Progress, TaskID

    from builder.engine.buildkit.progress import StepFinished
    from builder.events import Report

_REGISTRY = "registry"
_BETWEEN = "between steps"


def reporter() -> AbstractContextManager[Report]:
    """Returns a reporter that shows a build, as suits standard error and the verbosity."""
    return display.reporter_from(StepTimes, _live, _plain)


def _plain() -> Report:
    """Prints a line for each step that ended, for logs and pipes; with ``--verbose`` the output of the steps as
    well."""
    from builder.engine.buildkit.progress import StepFinished, StepOutput

    ended: set[str] = set()
    unfinished: dict[str, str] = {}

    def report(event: object) -> None:
        if isinstance(event, StepOutput) and verbosity.level() == "verbose":
            text = event.text.replace("\r\n", "\n").replace("\r", "\n")
            # Whole lines: half a secret would be shown, for it is not told.
            whole, end, unfinished[event.step] = (unfinished.get(event.step, "") + text).rpartition("\n")
            print_log(whole + end, err=True, nl=False)
        elif isinstance(event, StepFinished):
            if rest := unfinished.pop(event.step, ""):
                print_log(rest, err=True)
            if _is_shown(event) and event.step not in ended:
                ended.add(event.step)
                print_line(_ended_line(event), err=True)
        elif isinstance(event, TaskFinished):
            print_line(_task_line(event), err=True)

    return report


@contextmanager
def _live(console: Console) -> Iterator[Report]:
    """Prints a line for each step and task that ended and, below, keeps one for each that runs, with a clock and its
    previous time, one for a transfer to or from the registry, and one where nothing of that runs."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    text = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    # An empty cell is drawn one column wide, but counted as none: without the least width, the clock lost its seconds.
    amounts = TextColumn("{task.fields[amount]}", table_column=Column(min_width=1))
    columns = (SpinnerColumn(), TimeElapsedColumn(), text, amounts)
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        lines = _LiveLines(progress)
        lines.keep_one()

        def report(event: object) -> None:
            lines.show(event)
            lines.keep_one()

        yield report


@dataclass
class _LiveLines:
    """The lines of a live display: those of what runs, by step or text, and the times of before."""

    progress: Progress
    running: dict[str, TaskID] = field(default_factory=dict)
    expected: Mapping[str, float] = field(default_factory=dict)

    def show(self, event: object) -> None:
        """Shows an event of the build; passes over those that have no line."""
        from builder.engine.buildkit.progress import StepFinished, StepProgress, StepStarted
        from builder.engine.registry.transfer import LayerProgress

        if isinstance(event, StepTimes):
            self.expected = event.seconds
        elif isinstance(event, StepStarted) and not event.internal:
            last = self.expected.get(event.label)
            self._begin(event.step, event.title, f"took {humanize.duration(last)} before" if last else "")
        elif isinstance(event, StepProgress) and event.step in self.running and event.total:
            amount = f"{humanize.size(event.current)} of {humanize.size(event.total)}"
            self.progress.update(self.running[event.step], amount=amount)
        elif isinstance(event, StepFinished):
            self._end(event.step, _ended_line(event) if _is_shown(event) else "")
        elif isinstance(event, LayerProgress):
            if _REGISTRY not in self.running:
                self._begin(_REGISTRY, _REGISTRY)
            self.progress.update(self.running[_REGISTRY], amount=transfer_text.amount(event))
        elif isinstance(event, TaskStarted):
            self._begin(event.text, event.text)
        elif isinstance(event, TaskFinished):
            self._end(event.text, _task_line(event))

    def keep_one(self) -> None:
        """Keeps a line with a clock where nothing runs: BuildKit compares and unpacks layers between its steps, and
        says nothing of it."""
        others = self.running.keys() - {_BETWEEN}
        if others and _BETWEEN in self.running:
            self.progress.remove_task(self.running.pop(_BETWEEN))
        elif not self.running:
            self._begin(_BETWEEN, _BETWEEN)

    def _begin(self, key: str, title: str, amount: str = "") -> None:
        self.running[key] = self.progress.add_task(task_text(title), total=None, amount=amount)

    def _end(self, key: str, line: str) -> None:
        if key in self.running:
            self.progress.remove_task(self.running.pop(key))
            if line:
                self.progress.console.print(visible(line), markup=False, no_wrap=True, overflow="ellipsis")


def _is_shown(event: StepFinished) -> bool:
    return not event.internal and (event.cached or bool(event.error) or event.seconds >= 0.05)


def _task_line(event: TaskFinished) -> str:
    return f"{humanize.duration(event.seconds):>12}  {event.text}"


def _ended_line(event: StepFinished) -> str:
    word = "failed" if event.error else "cached" if event.cached else humanize.duration(event.seconds)
    return f"{word:>12}  {event.title}"
