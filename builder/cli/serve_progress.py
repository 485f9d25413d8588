"""The progress of a server that starts, and the line once it answers."""

from __future__ import annotations

import shlex
import time
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from builder import humanize
from builder.cli import display
from builder.cli.output import print_note, print_result, task_text
from builder.cli.terminal_text import styled
from builder.commands.run import WaitingStarted
from builder.serving.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from builder.commands.run import ServeResult
    from builder.events import Report
    from builder.serving.preparation import PreparedServer


def reporter() -> AbstractContextManager[Report]:
    """Returns a reporter of a server's start: its phase and a clock on a terminal, elsewhere a line for each phase."""
    return display.reporter_from(WaitingStarted, _live, _plain)


def print_served(result: ServeResult) -> None:
    """Prints the server's address, or its state if it does not answer yet."""
    server = result.server
    if back := result.put_back:
        print_result(f"{back.model}: {back.origin} → {back.to}, because {back.why}")
    where = f"{styled(server.name, bold=True)} serves from {server.image}"
    if result.seconds is None:
        how = "is starting already" if result.already else "starts"
        print_result(f"{server.name} {how} from {server.image}; `builder status` says how far it is")
    elif result.already:
        print_result(f"{where} already: {server.address}")
    else:
        print_result(f"{where}, ready after {humanize.duration(result.seconds)}: {server.address}")


def print_prepared(prepared: PreparedServer) -> None:
    """Prints what would be started: the image, the place and the command of each container."""
    for planned in prepared.containers:
        settings = planned.settings
        where = f" on {planned.engine.node}" if planned.engine.node else ""
        listens = f", port {prepared.port}" if prepared.port and planned is prepared.head else ""
        print_result(f"{styled(settings.name, bold=True)} would serve from {settings.image}{where}{listens}")
        print_result(f"  {shlex.join(settings.argv)}", hanging=4)
    if prepared.note:
        print_note(prepared.note)


def _plain() -> Report:
    """Prints a line for each phase, with the time until it began."""
    began, last = time.monotonic(), ""

    def report(event: object) -> None:
        nonlocal began, last
        if isinstance(event, WaitingStarted):
            began = time.monotonic()
        elif isinstance(event, Phase) and event.name != last:
            last = event.name
            print_note(f"{humanize.duration(time.monotonic() - began):>12}  {last}")

    return report


@contextmanager
def _live(console: Console) -> Iterator[Report]:
    """Shows one line with a clock and the current phase."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def report(event: object) -> None:
            if isinstance(event, Phase):
                progress.update(task, description=task_text(str(event)))

        yield report
