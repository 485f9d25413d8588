"""A build's progress: a live line for each step that runs on a terminal, a line for each step that ended elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from builder import humanize
from builder.building.step_times import StepTimes
from builder.cli import display, transfer_text, verbosity
from builder.cli.output import print_line, print_log, task_text
from builder.cli.terminal_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console
    from rich.progress import TaskID

    from builder.engine.buildkit.progress import StepFinished
    from builder.events import Report

_REGISTRY = "registry"


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

    return report


@contextmanager
def _live(console: Console) -> Iterator[Report]:
    """Prints a line for each step that ended and, below, keeps one for each that runs, with a clock and its previous
    time, and one for a transfer to or from the registry."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    from builder.engine.buildkit.progress import StepFinished, StepProgress, StepStarted
    from builder.engine.registry.transfer import LayerProgress

    text = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    # An empty cell is drawn one column wide, but counted as none: without the least width, the clock lost its seconds.
    amounts = TextColumn("{task.fields[amount]}", table_column=Column(min_width=1))
    columns = (SpinnerColumn(), TimeElapsedColumn(), text, amounts)
    running: dict[str, TaskID] = {}
    expected: Mapping[str, float] = {}
    with Progress(*columns, console=console, transient=True, expand=True) as progress:

        def report(event: object) -> None:
            nonlocal expected
            if isinstance(event, StepTimes):
                expected = event.seconds
            elif isinstance(event, StepStarted) and not event.internal:
                last = expected.get(event.label)
                amount = f"took {humanize.duration(last)} before" if last else ""
                running[event.step] = progress.add_task(task_text(event.title), total=None, amount=amount)
            elif isinstance(event, StepProgress) and event.step in running and event.total:
                amount = f"{humanize.size(event.current)} of {humanize.size(event.total)}"
                progress.update(running[event.step], amount=amount)
            elif isinstance(event, StepFinished) and event.step in running:
                progress.remove_task(running.pop(event.step))
                if _is_shown(event):
                    console.print(visible(_ended_line(event)), markup=False, no_wrap=True, overflow="ellipsis")
            elif isinstance(event, LayerProgress):
                if _REGISTRY not in running:
                    running[_REGISTRY] = progress.add_task(_REGISTRY, total=None, amount="")
                progress.update(running[_REGISTRY], amount=transfer_text.amount(event))

        yield report


def _is_shown(event: StepFinished) -> bool:
    return not event.internal and (event.cached or bool(event.error) or event.seconds >= 0.05)


def _ended_line(event: StepFinished) -> str:
    word = "failed" if event.error else "cached" if event.cached else humanize.duration(event.seconds)
    return f"{word:>12}  {event.title}"
