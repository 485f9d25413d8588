"""``builder run``."""

from __future__ import annotations

import os
from typing import Any

import click

from builder.cli.context import Context, pass_context
from builder.cli.serve_options import overrides, serving_options


@click.command()
@serving_options
@pass_context
def run(
    context: Context, /, what: str, extra: tuple[str, ...], nodes: tuple[str, ...], detach: bool, **given: Any
) -> None:
    """Serve a model with the image that it is paired with.

    Waits until it answers; ^C meanwhile stops it again. From then on the engine restarts it when it ends by itself, and
    when the machine starts. Several --node serve it together, the first one answers.
    """
    from builder.cli import readiness
    from builder.commands import run as verb
    from builder.serving import preparation

    request = preparation.ServeRequest(what, overrides(given), extra, nodes)
    prepared = preparation.prepare(context.workspace(), request)
    readiness.say_image(context, prepared.selection)
    readiness.finish(context, verb.start(prepared, os.environ), detach=detach)
