"""``builder run``."""

from __future__ import annotations

from typing import Any

import click

from builder.cli.container_options import requested
from builder.cli.context import Context, pass_context
from builder.cli.serve_options import backend, overrides, serving_options


@click.command()
@serving_options
@pass_context
def run(
    context: Context,
    /,
    what: str,
    extra: tuple[str, ...],
    nodes: tuple[str, ...],
    detach: bool,
    force: bool,
    **options: Any,
) -> None:
    """Serve a model with the image that it is paired with.

    Waits until it answers; ^C during the wait stops it. After that the engine restarts it if it ends by itself, and
    when the machine starts. With several --node they serve it together, and the first one answers.
    """
    from builder.cli import serve_progress
    from builder.commands import run as command
    from builder.serving.preparation import ServeRequest

    request = ServeRequest(
        what, overrides(options), extra, nodes, backend(options["ray"]), requested(options), force=force
    )
    with serve_progress.reporter() as report:
        result = command.run(context.workspace(report), request, detach=detach)
    serve_progress.print_served(result)
