"""``builder run``."""

from __future__ import annotations

from typing import Any

import click

from builder.cli.container_options import requested
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json
from builder.cli.serve_options import backend, overrides, serving_options


@click.command()
@click.option("--dry-run", is_flag=True, help="Print what would be started, and start nothing.")
@serving_options
@json_option
@pass_context
def run(
    context: Context,
    /,
    what: str,
    extra: tuple[str, ...],
    nodes: tuple[str, ...],
    detach: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Serve a model with the image that it is paired with.

    Waits until it answers; ^C during the wait stops it. After that the engine restarts it if it ends by itself, and
    when the machine starts. With several --node they serve it together, and the first one answers.
    """
    from builder.cli import serve_progress, served_json
    from builder.commands import run as command
    from builder.serving.preparation import ServeRequest

    request = ServeRequest(
        what, overrides(options), extra, nodes, backend(options["ray"]), requested(options), force=force
    )
    if dry_run and as_json:
        raise click.UsageError("--dry-run goes with no --json")
    with serve_progress.reporter() as report:
        if dry_run:
            serve_progress.print_prepared(command.preview(context.workspace(report), request))
            return
        result = command.run(context.workspace(report), request, detach=detach)
    if as_json:
        print_json({"server": served_json.document(result)})
    else:
        serve_progress.print_served(result)
