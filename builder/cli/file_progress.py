"""The progress of files being transferred, of a model or an image: a bar on a terminal, elsewhere a line every 10 %."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from builder import humanize
from builder.cli import display
from builder.cli.output import print_note, task_text
from builder.events import TransferProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import TaskID

    from builder.events import Report

# The percentage between two lines: a log has ten lines for a model, however large it is.
_STEP = 10


def reporter() -> AbstractContextManager[Report]:
    """Returns a reporter that shows transfers of files, as suits standard error and the verbosity."""
    return display.reporter(_live, _plain())


def _plain() -> Report:
    reached: dict[str, int] = {}

    def report(event: object) -> None:
        if not isinstance(event, TransferProgress):
            return
        step = 100 * event.current // max(event.total, 1) // _STEP * _STEP
        if step > reached.setdefault(event.what, 0):
            reached[event.what] = step
            print_note(f"{event.what}: {step} % of {humanize.size(event.total)}")

    return report


@contextmanager
def _live(console: Console) -> Iterator[Report]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    text = TextColumn("{task.description}")
    tasks: dict[str, TaskID] = {}
    with Progress(text, BarColumn(None), *columns, console=console, transient=True, expand=True) as progress:

        def report(event: object) -> None:
            if isinstance(event, TransferProgress):
                if event.what not in tasks:
                    tasks[event.what] = progress.add_task(task_text(event.what), completed=event.current)
                progress.update(tasks[event.what], completed=event.current, total=event.total)

        yield report
