"""``--quiet`` and ``--verbose``: how much is said beside the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from collections.abc import Callable

Level = Literal["quiet", "normal", "verbose"]
_KEY = "builder.verbosity"


def level() -> Level:
    """What the person asked for."""
    context = click.get_current_context(silent=True)
    found: Level = context.meta.get(_KEY, "normal") if context else "normal"
    return found


def verbosity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The two options of a command that says something while it works."""
    quiet = _option("--quiet", "-q", "quiet", "Say nothing but the result and errors.")
    verbose = _option("--verbose", "-v", "verbose", "Show what each step prints, too.")
    return quiet(verbose(command))


def _option(name: str, short: str, value: Level, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(ctx: click.Context, _parameter: click.Parameter, given: bool) -> None:
        if given:
            ctx.meta[_KEY] = value

    return click.option(name, short, is_flag=True, expose_value=False, callback=keep, help=text)
