"""Showing what a verb says while it works, where nothing else is shown."""

from __future__ import annotations

import click

from builder.cli import verbosity
from builder.events import Said


def say(event: object) -> None:
    """Prints a verb's remark to standard error, so that standard output holds the result alone."""
    if isinstance(event, Said) and verbosity.level() != "quiet":
        click.echo(event.text, err=True)
