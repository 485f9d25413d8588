"""What is shown while a server starts, and when it answers."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from builder.cli import display, wording
from builder.cli.output import note, put, say
from builder.events import Message
from builder.serving.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from builder.cli.context import Context
    from builder.commands.run import Started
    from builder.events import Report
    from builder.serving.image_selection import SelectedImage


def say_image(context: Context, found: SelectedImage) -> None:
    """Says so where the image is not the model's own, or the model is at another revision than it was."""
    from builder.serving import image_selection, model_revision

    for remark in (image_selection.warning(found), model_revision.warning(context.project, os.environ, found.recipe)):
        if remark:
            say(Message(remark))


def finish(context: Context, started: Started, *, detach: bool) -> None:
    """Waits until it answers, unless told not to, and says where."""
    from builder.commands import readiness
    from builder.serving import model_revision
    from builder.serving.running import answers

    running = started.running
    where = f"{click.style(running.name, bold=True)} serves from {running.image}"
    if started.already and answers(running):
        put(f"{where} already: {running.address}")
    elif detach:
        how = "is starting already" if started.already else "starts"
        put(f"{running.name} {how} from {running.image}; `builder status` says how far it is")
    else:
        with display.shown(_live, _plain()) as report:
            seconds = readiness.wait(context.project, started, report)
        if model := started.selection.recipe.model:
            model_revision.record(context.workspace(), model)
        put(f"{where}, ready after {wording.duration(seconds)}: {running.address}")


def _plain() -> Report:
    """A line for each phase, with when it began."""
    began, last = time.monotonic(), ""

    def report(event: object) -> None:
        nonlocal last
        if isinstance(event, Phase) and event.name != last:
            last = event.name
            note(f"{wording.duration(time.monotonic() - began):>12}  {last}")

    return report


@contextmanager
def _live(console: Console) -> Iterator[Report]:
    """One line with a clock, and the phase of now."""
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def report(event: object) -> None:
            if isinstance(event, Phase):
                progress.update(task, description=escape(str(event)))

        yield report
