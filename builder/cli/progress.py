"""The progress of a command, on standard error.

On a terminal, each running task has a line with a clock, and each finished task a permanent line. Otherwise, and with
``--verbose``, there are only permanent lines; a long task prints one from time to time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.base.events import (
    Message,
    NodeEvent,
    Stage,
    TaskFinished,
    TaskStarted,
    TransferProgress,
    WaitingStarted,
    ignore,
)
from builder.base.words import duration_text, size_of, size_text
from builder.cli import output
from builder.cli.output import print_log, print_note, print_on_console, task_text

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID
    from rich.text import Text

    from builder.base.events import Report
    from builder.engine.build_log import StepProgress


AFTER_SECONDS = 1.0
# Without a live display: seconds between two lines of a task, and percentage between two lines of a transfer.
_PAUSE_SECONDS = 30.0
_PERCENT = 10
_REGISTRY, _STAGE, _BETWEEN = "registry", "stage", "between steps"


@contextmanager
def reporter() -> Iterator[Report]:
    """Yields a reporter for standard error and the verbosity."""
    level = output.level()
    if level == "quiet":
        yield ignore
    elif level == "normal" and sys.stderr.isatty():
        live = _Live()
        try:
            yield live
        finally:
            live.end()
    else:
        yield _Log()


@contextmanager
def showing(text: str) -> Iterator[None]:
    """On a terminal, shows ``text`` with a clock after the first second of the block."""
    with reporter() as report:
        timer = threading.Timer(AFTER_SECONDS, report, [TaskStarted(text)])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class _Reporter:
    """Prints messages, and a line for each finished task. Several nodes may report at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: set[str] = set()

    def __call__(self, event: object) -> None:
        with self._lock:
            if isinstance(event, Message):
                self.print(event.text)
                return
            self.show(event)
            if line := self._ended_line(event):
                self.print(line)

    def print(self, text: str) -> None:
        """Prints a permanent line."""
        print_note(text)

    def show(self, event: object) -> None:
        """Shows an event of a running task."""
        raise NotImplementedError

    def _ended_line(self, event: object) -> str:
        from builder.engine.build_log import StepFinished

        if isinstance(event, TaskFinished):
            return _line(duration_text(event.seconds), event.text)
        if isinstance(event, NodeEvent) and isinstance(event.event, Message):
            return f"{event.node}: {event.event.text}"
        # If BuildKit starts a step again, the step has a new digest but the same title.
        if not isinstance(event, StepFinished) or event.internal or event.cancelled or event.step in self._ended:
            return ""
        if event.cached and event.title in self._ended:
            return ""
        self._ended |= {event.step, event.title}
        if event.cached or event.error:
            return _line("failed" if event.error else "cached", event.title)
        return _line(duration_text(event.seconds), event.title) if event.seconds >= 0.05 else ""


class _Log(_Reporter):
    """Prints only permanent lines. Transfers and stages get a line from time to time."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._output: dict[str, str] = {}
        self._percent: dict[str, int] = {}
        self._stage, self._shown = "", self._began

    def show(self, event: object) -> None:
        if isinstance(event, TransferProgress):
            percent = 100 * event.current // max(event.total, 1) // _PERCENT * _PERCENT
            if percent > self._percent.setdefault(event.what, 0):
                self._percent[event.what] = percent
                self.print(f"{event.what}: {percent} % of {size_text(event.total)}")
        elif isinstance(event, WaitingStarted):
            self._began = time.monotonic()
        elif isinstance(event, Stage):
            now = time.monotonic()
            if event.name != self._stage or now - self._shown > _PAUSE_SECONDS:
                self._stage, self._shown = event.name, now
                self.print(_line(duration_text(now - self._began), str(event)))
        else:
            self._show_step(event)

    def _show_step(self, event: object) -> None:
        from builder.engine.build_log import LayersPacked, StepFinished, StepOutput

        if isinstance(event, LayersPacked):
            now = time.monotonic()
            if now - self._shown > _PAUSE_SECONDS:
                self._shown = now
                self.print(f"exporting to image: {size_text(event.size)} packed")
        elif output.level() != "verbose":
            return
        elif isinstance(event, StepOutput):
            text = event.text.replace("\r\n", "\n").replace("\r", "\n")
            # Print only whole lines: a part of a secret would not be recognized, and would be shown.
            whole, end, self._output[event.step] = (self._output.get(event.step, "") + text).rpartition("\n")
            print_log(whole + end, err=True, nl=False)
        elif isinstance(event, StepFinished) and (rest := self._output.pop(event.step, "")):
            print_log(rest, err=True)


class _Live(_Reporter):
    """Lines of running tasks below the permanent lines. They start with the first event that is not a message, because
    the import of rich takes 50 ms."""

    def __init__(self) -> None:
        super().__init__()
        self._is_over = False
        self._progress: Progress | None = None
        self._running: dict[str, TaskID] = {}
        self._expected: Mapping[str, float] | None = None

    def end(self) -> None:
        """Removes the lines of running tasks."""
        with self._lock:
            self._is_over = True
            if self._progress:
                self._progress.stop()

    def print(self, text: str) -> None:
        if self._progress:
            print_on_console(self._progress.console, text)
        else:
            print_note(text)

    def show(self, event: object) -> None:
        if self._is_over:
            return
        from builder.building.bake import StepTimes
        from builder.engine.build_log import LayersPacked, StepFinished, StepProgress, StepStarted

        progress = self._display()
        if isinstance(event, StepTimes):
            self._expected = event.seconds
            self._remove(*self._running)  # such as the stage of a server that was tried before this build
        elif isinstance(event, StepStarted) and not event.internal:
            last = (self._expected or {}).get(event.label)
            self._set(event.step, event.title, f"took {duration_text(last)} last time" if last else "")
        elif isinstance(event, StepProgress | LayersPacked):
            amount = f"{size_text(event.size)} packed" if isinstance(event, LayersPacked) else _amount(event)
            if amount and event.step in self._running:
                progress.update(self._running[event.step], amount=amount)
        elif isinstance(event, StepFinished):
            self._remove(event.step)
        else:
            self._show_other(event)
        # Between its steps, BuildKit compares and unpacks layers without reporting anything.
        if self._expected is not None and not self._running:
            self._set(_BETWEEN, _BETWEEN)
        elif len(self._running) > 1:
            self._remove(_BETWEEN)

    def _show_other(self, event: object) -> None:
        from builder.engine.transfer import LayerProgress

        where, what = (event.node, event.event) if isinstance(event, NodeEvent) else (_REGISTRY, event)
        if isinstance(what, LayerProgress):
            self._set(where, where, str(what), what.current, what.total)
        elif isinstance(event, NodeEvent):
            self._remove(where)
        elif isinstance(event, TransferProgress):
            amount = size_of(event.current, event.total)
            self._set(event.what, event.what, amount, event.current, event.total)
        elif isinstance(event, Stage):
            self._set(_STAGE, str(event))
        elif isinstance(event, TaskStarted):
            self._set(event.text, event.text)
        elif isinstance(event, TaskFinished):
            self._remove(event.text)

    def _display(self) -> Progress:
        if self._progress is None:
            self._progress = _started()
        return self._progress

    def _set(self, key: str, text: str, amount: str = "", completed: int = 0, total: int = 0) -> None:
        progress, whole = self._display(), total or None
        if key in self._running:
            task = self._running[key]
            progress.update(task, description=task_text(text), amount=amount, completed=completed, total=whole)
        else:
            self._running[key] = progress.add_task(task_text(text), amount=amount, completed=completed, total=whole)

    def _remove(self, *keys: str) -> None:
        for key in keys:
            if self._progress and key in self._running:
                self._progress.remove_task(self._running.pop(key))


def _amount(event: StepProgress) -> str:
    """The progress of a part of a step. BuildKit packs the layers of an image, then unpacks them."""
    if event.total:
        return size_of(event.current, event.total)
    return "unpacking" if event.what.startswith("unpacking to ") and not event.done else ""


def _started() -> Progress:
    """Starts a live display with a clock, a text and an amount for each task."""
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class Amount(ProgressColumn):
        def render(self, task: Task) -> Text:
            words = [f"{task.percentage:.0f} %"] if task.total else []
            words += filter(None, [task.fields["amount"]])
            if task.total and task.speed and task.time_remaining:
                words += [f"{size_text(round(task.speed))}/s", f"{duration_text(task.time_remaining)} left"]
            return Text(", ".join(words))

    text = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    # rich draws an empty cell one column wide, but counts none. Without the minimum width, the clock lost its seconds.
    columns = (SpinnerColumn(), TimeElapsedColumn(), text, Amount(Column(min_width=1, no_wrap=True)))
    progress = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True, expand=True)
    progress.start()
    return progress


def _line(word: str, text: str) -> str:
    return f"{word:>12}  {text}"
