"""Printing: results to standard output, everything else to standard error, folded to the width of the terminal."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from builder.cli import folding, verbosity
from builder.events import Message

if TYPE_CHECKING:
    from rich.console import Console

    from builder.errors import BuilderError


_HINT_LABEL = click.style("what to do:", bold=True)


def print_result(text: str, hanging: int = 2) -> None:
    """Prints one or several lines of the result; folded lines are indented by ``hanging`` more columns."""
    _print(text, err=False, hanging=hanging)


def print_note(text: str) -> None:
    """Prints to standard error, so that standard output has nothing but the result."""
    _print(text, err=True)


def print_message(event: object) -> None:
    """Prints the text of a `Message`, unless ``--quiet`` is given; ignores other events."""
    if isinstance(event, Message) and verbosity.level() != "quiet":
        print_note(event.text)


def print_on_console(console: Console, text: str) -> None:
    """Prints above the live display on ``console``."""
    for line in text.split("\n"):
        for folded in folding.fold(line, console.width):
            console.print(folded, markup=False, no_wrap=True, overflow="ignore", crop=False)


def print_error(failure: BuilderError, label: str = "error:") -> None:
    """Prints an error with its hint; ``label`` stands before its message."""
    _print_error_lines(label, failure.message)
    if log := getattr(failure, "log", ""):
        print_note(f"the whole log: {log}")
    if failure.hint:
        print_note(f"{_HINT_LABEL} {failure.hint}")


def print_usage_error(failure: click.ClickException) -> None:
    """Prints a mistake in the command as typed."""
    _print_error_lines(
        "error:", failure.format_message().replace("\n\t", " ")
    )  # click puts each choice on a line of its own
    if isinstance(failure, click.UsageError) and failure.ctx:
        print_note(f"{_HINT_LABEL} `{failure.ctx.command_path} --help` shows how it is used")


def _print_error_lines(label: str, message: str) -> None:
    first, *rest = message.splitlines() or ["no message"]
    for line in (f"{click.style(label, fg='red', bold=True)} {first}", *(f"  {line}" for line in rest)):
        _print(line, err=True, hanging=4)


def print_json(content: dict[str, Any], indent: int | None = 1) -> None:
    """Prints a command's result as JSON, on one line if ``indent`` is None."""
    click.echo(json.dumps({"schema_version": 1, **content}, indent=indent, ensure_ascii=False))


def _print(text: str, *, err: bool, hanging: int = 2) -> None:
    columns = folding.width(sys.stderr if err else sys.stdout)
    for line in text.split("\n"):
        for folded in folding.fold(line, columns, hanging):
            click.echo(folded, err=err, color=colour())


def colour() -> bool | None:
    """Returns the ``color`` of click: False if the user wants none (https://no-color.org), else None: on a terminal
    only."""
    return False if os.environ.get("NO_COLOR") else None
