"""The progress of images being transferred: a bar for each on a terminal, elsewhere a line for each that arrived."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from builder import humanize
from builder.cli import display, output, transfer_text
from builder.commands.copy import CopyOutcome, NodeEvent
from builder.engine.registry.transfer import LayerProgress
from builder.events import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import TaskID

    from builder.events import Report


def reporter() -> AbstractContextManager[Report]:
    """Returns a reporter that shows transfers of images, as suits standard error and the verbosity."""
    return display.reporter(_live, _plain)


def _plain(event: object) -> None:
    """Prints a line for each node once it is done."""
    if isinstance(event, NodeEvent) and isinstance(event.event, CopyOutcome):
        output.print_note(f"{event.node}: {outcome_words(event.event)}")


@contextmanager
def _live(console: Console) -> Iterator[Report]:
    """Shows a bar for each transfer, named after the node, or ``registry``."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"), TimeElapsedColumn())
    bars: dict[str, TaskID] = {}
    lock = threading.Lock()  # nodes report at the same time
    with Progress(*columns, console=console, transient=True) as progress:

        def report(event: object) -> None:
            where, what = (event.node, event.event) if isinstance(event, NodeEvent) else ("registry", event)
            with lock:
                if isinstance(what, Message):
                    output.print_on_console(console, what.text)
                elif isinstance(what, LayerProgress):
                    if where not in bars:
                        bars[where] = progress.add_task(output.task_text(where), total=None, amount="")
                    progress.update(
                        bars[where], completed=what.current, total=what.total or None, amount=transfer_text.amount(what)
                    )
                elif isinstance(what, CopyOutcome):
                    if where in bars:
                        progress.remove_task(bars.pop(where))
                    output.print_on_console(console, f"{where}: {outcome_words(what)}")

        yield report


def outcome_words(outcome: CopyOutcome) -> str:
    """Describes the outcome on one node in a few words."""
    if outcome.error:
        return f"failed: {outcome.error.message}"
    if outcome.layers is None:
        return "has it already"
    return f"has it now, {transfer_text.layers(outcome.layers)} moved in {humanize.duration(outcome.seconds)}"
