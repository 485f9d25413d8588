"""Showing what a verb says while it works, where nothing else is shown."""

from __future__ import annotations

import json
from typing import Any

import click

from builder.cli import verbosity
from builder.events import Said


def say(event: object) -> None:
    """Prints a verb's remark to standard error, so that standard output holds the result alone."""
    if isinstance(event, Said) and verbosity.level() != "quiet":
        click.echo(event.text, err=True)


def document(content: dict[str, Any]) -> None:
    """Prints what a command has to say to programs."""
    click.echo(json.dumps({"schema_version": 1, **content}, indent=1, ensure_ascii=False))
