"""Printing: results to standard output, everything else to standard error, folded to the width of the terminal.

All that this program prints goes through here, and with it through `terminal_text`: nothing that others wrote reaches
the terminal as it is.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from builder.cli import folding, terminal_text, verbosity
from builder.events import Message

if TYPE_CHECKING:
    from rich.console import Console

    from builder.errors import BuilderError


STREAM = "standard output"
"""What an OSError names that came from printing."""

_HINT_LABEL = terminal_text.styled("what to do:", bold=True)


def print_result(text: str, hanging: int = 2) -> None:
    """Prints one or several lines of the result; folded lines are indented by ``hanging`` more columns."""
    _print(text, err=False, hanging=hanging)


def print_note(text: str) -> None:
    """Prints to standard error, so that standard output has nothing but the result."""
    _print(text, err=True)


def print_line(text: str = "", *, err: bool = False) -> None:
    """Prints a line as it is, such as a row of a table that fits already."""
    _echo(terminal_text.visible(text), err=err, color=colour())


def print_document(text: str) -> None:
    """Prints a whole document to standard output: as it is where a program reads it, for a file must be what was
    exported; with its control characters made visible on a terminal."""
    _echo(terminal_text.visible(text) if sys.stdout.isatty() else text, nl=False)


def print_log(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Prints a part of the log of another program, with its colours on a terminal."""
    stream = sys.stderr if err else sys.stdout
    in_colours = stream.isatty() and colour() is not False
    shown = terminal_text.log_with_colours(text) if in_colours else terminal_text.log_without_colours(text)
    _echo(shown, err=err, nl=nl)


def confirm(question: str, *, default: bool = False) -> bool:
    """Asks the user; True for yes."""
    return click.confirm(terminal_text.on_one_line(question), default=default)


def print_message(event: object) -> None:
    """Prints the text of a `Message`, unless ``--quiet`` is given; ignores other events."""
    if isinstance(event, Message) and verbosity.level() != "quiet":
        print_note(event.text)


def print_on_console(console: Console, text: str) -> None:
    """Prints above the live display on ``console``."""
    for line in terminal_text.visible(text).split("\n"):
        for folded in folding.fold(line, console.width):
            console.print(folded, markup=False, no_wrap=True, overflow="ignore", crop=False)


def task_text(text: str) -> str:
    """``text`` for the description of a task in a live display, which would read `[red]` in it as a colour."""
    from rich.markup import escape

    return escape(terminal_text.on_one_line(text))


def print_error(failure: BuilderError, label: str = "error:") -> None:
    """Prints an error with its hint; ``label`` stands before its message."""
    _print_error_lines(label, failure.message)
    if log := getattr(failure, "log", ""):
        print_note(f"the whole log: {log}")
    if failure.hint:
        print_note(f"{_HINT_LABEL} {failure.hint}")


# Click names its own types; the longer name of a pair stands first.
_TYPES_OF_CLICK = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
}


def print_usage_error(failure: click.ClickException) -> None:
    """Prints a mistake in the command as typed."""
    message = failure.format_message().replace("\n\t", " ")  # click puts each choice on a line of its own
    for theirs, ours in _TYPES_OF_CLICK.items():
        message = message.replace(theirs, ours)
    _print_error_lines("error:", message)
    if isinstance(failure, click.UsageError) and failure.ctx:
        print_note(f"{_HINT_LABEL} `{failure.ctx.command_path} --help` shows how it is used")


def _print_error_lines(label: str, message: str) -> None:
    first, *rest = message.splitlines() or ["no message"]
    for line in (f"{terminal_text.styled(label, fg='red', bold=True)} {first}", *(f"  {line}" for line in rest)):
        _print(line, err=True, hanging=4)


def print_json(content: dict[str, Any], indent: int | None = 1) -> None:
    """Prints a command's result as JSON, on one line if ``indent`` is None."""
    document = json.dumps({"schema_version": 1, **content}, indent=indent, ensure_ascii=False)
    _echo(terminal_text.of_json(document))


def _print(text: str, *, err: bool, hanging: int = 2) -> None:
    columns = folding.width(sys.stderr if err else sys.stdout)
    for line in terminal_text.visible(text).split("\n"):
        for folded in folding.fold(line, columns, hanging):
            print_line(folded, err=err)


def _echo(text: str, *, err: bool = False, nl: bool = True, color: bool | None = None) -> None:
    try:
        click.echo(text, err=err, nl=nl, color=color)
    except OSError as error:
        error.filename = STREAM
        raise


def colour() -> bool | None:
    """Returns the ``color`` of click: False if the user wants none (https://no-color.org) or the terminal calls itself
    dumb, else None: on a terminal only."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
