"""``--quiet`` and ``--verbose``: the amount of output beside the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from collections.abc import Callable

Verbosity = Literal["quiet", "normal", "verbose"]
_KEY = "builder.verbosity"


def level() -> Verbosity:
    """The verbosity that the user chose."""
    context = click.get_current_context(silent=True)
    chosen: Verbosity = context.meta.get(_KEY, "normal") if context else "normal"
    return chosen


def verbosity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the two options, for commands that print something while they work."""
    quiet = _option("--quiet", "-q", "quiet", "Print nothing but the result and errors.")
    verbose = _option("--verbose", "-v", "verbose", "Show the output of each step, too.")
    return quiet(verbose(command))


def _option(name: str, short: str, value: Verbosity, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(ctx: click.Context, _parameter: click.Parameter, given: bool) -> None:
        if given:
            ctx.meta[_KEY] = value

    return click.option(name, short, is_flag=True, expose_value=False, callback=keep, help=text)
