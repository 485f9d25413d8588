"""The progress of a measurement: its server's start, and then how much of it is done and how long it still takes."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from builder import humanize
from builder.cli import display
from builder.cli.output import print_note, task_text
from builder.measuring.outcome import MeasuringProgress
from builder.serving.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from builder.events import Report

# Seconds between two lines where no terminal shows it live.
_PAUSE_SECONDS = 30.0


def reporter() -> AbstractContextManager[Report]:
    """Returns a reporter of a measurement: one line on a terminal, elsewhere a line now and then."""
    return display.reporter(_live, _plain())


def _text(event: MeasuringProgress) -> str:
    left = f", {humanize.duration(event.seconds_left)} left" if event.seconds_left is not None else ""
    return f"{event.what}: {event.share:.0%}{left}"


def _plain() -> Report:
    shown, phase, what = 0.0, "", ""

    def report(event: object) -> None:
        nonlocal shown, phase, what
        if isinstance(event, Phase) and event.name != phase:
            phase = event.name
            print_note(phase)
        elif isinstance(event, MeasuringProgress):
            now = time.monotonic()
            if event.what != what or now - shown > _PAUSE_SECONDS:
                shown, what = now, event.what
                print_note(_text(event))

    return report


@contextmanager
def _live(console: Console) -> Iterator[Report]:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def report(event: object) -> None:
            if isinstance(event, Phase | MeasuringProgress):
                text = str(event) if isinstance(event, Phase) else _text(event)
                progress.update(task, description=task_text(text))

        yield report
