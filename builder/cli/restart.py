"""``builder restart``."""

from __future__ import annotations

import os
from typing import Any

import click

from builder.cli.complete import names
from builder.cli.context import Context, pass_context
from builder.cli.run import detach_option, node_option
from builder.cli.serve_options import overrides, serve_options
from builder.cli.verbosity import verbosity_options


@click.command()
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM ARGUMENT…]")
@serve_options
@node_option
@detach_option
@verbosity_options
@pass_context
def restart(
    context: Context, /, what: str, extra: tuple[str, ...], nodes: tuple[str, ...], detach: bool, **given: Any
) -> None:
    """Serve anew, from the image that is paired now.

    After `rollback MODEL` that is the one before. With the options that it was started with, and what is given here in
    place of them.
    """
    from builder.cli import waiting
    from builder.cli.say import say
    from builder.serving.wanted import Request
    from builder.verbs import restart as verb

    request = Request(what, overrides(given), extra, nodes)
    started = verb.restart(context.project, context.endpoint, os.environ, request, say)
    waiting.say_image(context, started.found)
    waiting.finish(context, started, detach=detach)
