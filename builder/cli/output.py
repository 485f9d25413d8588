"""How everything is said: results to standard output, the rest to standard error, each folded to its terminal."""

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


_WHAT_TO_DO = click.style("what to do:", bold=True)


def print_result(text: str, hanging: int = 2) -> None:
    """Prints a line, or several, of the result; what is folded stands ``hanging`` columns deeper."""
    _print(text, err=False, hanging=hanging)


def print_note(text: str) -> None:
    """Prints what is no result, so that standard output holds the result alone."""
    _print(text, err=True)


def print_message(event: object) -> None:
    """Prints a command's warning, unless only the result is wanted."""
    if isinstance(event, Message) and verbosity.level() != "quiet":
        print_note(event.text)


def print_on_console(console: Console, text: str) -> None:
    """Prints above what moves on ``console``."""
    for line in text.split("\n"):
        for folded in folding.fold(line, console.width):
            console.print(folded, markup=False, no_wrap=True, overflow="ignore", crop=False)


def print_error(failure: BuilderError, what: str = "error:") -> None:
    """Prints an error and what to do; ``what`` stands before its message."""
    _message(what, failure.message)
    if log := getattr(failure, "log", ""):
        print_note(f"the whole log: {log}")
    if failure.hint:
        print_note(f"{_WHAT_TO_DO} {failure.hint}")


def print_usage_error(failure: click.ClickException) -> None:
    """Prints what was wrong with the command as it was typed."""
    _message("error:", failure.format_message().replace("\n\t", " "))  # click puts each choice on a line of its own
    if isinstance(failure, click.UsageError) and failure.ctx:
        print_note(f"{_WHAT_TO_DO} `{failure.ctx.command_path} --help` shows how it is used")


def _message(what: str, message: str) -> None:
    first, *rest = message.splitlines() or ["no message"]
    for line in (f"{click.style(what, fg='red', bold=True)} {first}", *(f"  {line}" for line in rest)):
        _print(line, err=True, hanging=4)


def print_json(content: dict[str, Any], indent: int | None = 1) -> None:
    """Prints what a command has to say to programs, on one line where ``indent`` is None."""
    click.echo(json.dumps({"schema_version": 1, **content}, indent=indent, ensure_ascii=False))


def _print(text: str, *, err: bool, hanging: int = 2) -> None:
    columns = folding.width(sys.stderr if err else sys.stdout)
    for line in text.split("\n"):
        for folded in folding.fold(line, columns, hanging):
            click.echo(folded, err=err, color=colour())


def colour() -> bool | None:
    """No colour where the person wants none (https://no-color.org), and otherwise on a terminal only."""
    return False if os.environ.get("NO_COLOR") else None
