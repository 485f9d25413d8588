"""``builder restart``."""

from __future__ import annotations

from typing import Any

import click

from builder.cli.container_options import requested
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json
from builder.cli.serve_options import backend, overrides, serving_options


@click.command()
@serving_options
@json_option
@pass_context
def restart(
    context: Context,
    /,
    what: str,
    extra: tuple[str, ...],
    nodes: tuple[str, ...],
    detach: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Restart a server, from the image that is paired now.

    After `rollback MODEL` that is the previous one. The options are those that it was started with, except those given
    here.
    """
    from builder.cli import progress, served_json
    from builder.cli.run import print_served
    from builder.commands import restart as command
    from builder.serving.preparation import ServeRequest

    request = ServeRequest(
        what, overrides(options), extra, nodes, backend(options["ray"]), requested(options), force=force
    )
    with progress.reporter() as report:
        result = command.run(context.workspace(report), request, detach=detach)
    if as_json:
        print_json({"server": served_json.document(result)})
    else:
        print_served(result)
