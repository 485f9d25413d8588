"""``builder run``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli.container_options import requested
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_note, print_result
from builder.cli.serve_options import backend, overrides, serving_options
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from builder.commands.run import ServeResult
    from builder.serving.preparation import PreparedServer


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
    from builder.cli import progress, served_json
    from builder.commands import run as command
    from builder.serving.preparation import ServeRequest

    request = ServeRequest(
        what, overrides(options), extra, nodes, backend(options["ray"]), requested(options), force=force
    )
    if dry_run and as_json:
        raise click.UsageError("--dry-run goes with no --json")
    with progress.reporter() as report:
        if dry_run:
            print_prepared(command.preview(context.workspace(report), request))
            return
        result = command.run(context.workspace(report), request, detach=detach)
    if as_json:
        print_json({"server": served_json.document(result)})
    else:
        print_served(result)


def print_served(result: ServeResult) -> None:
    """Prints the server's address, or its state if it does not answer yet."""
    server = result.server
    if back := result.put_back:
        print_result(f"{back.model}: {back.origin} → {back.to}, because {back.why}")
    where = f"{styled(server.name, bold=True)} serves from {server.image}"
    if result.seconds is None:
        how = "is starting already" if result.already else "starts"
        print_result(f"{server.name} {how} from {server.image}; `builder status` says how far it is")
    elif result.already:
        print_result(f"{where} already: {server.address}")
    else:
        print_result(f"{where}, ready after {humanize.duration(result.seconds)}: {server.address}")


def print_prepared(prepared: PreparedServer) -> None:
    """Prints what would be started: the image, the place and the command of each container."""
    for planned in prepared.containers:
        settings = planned.settings
        where = f" on {planned.engine.node}" if planned.engine.node else ""
        listens = f", port {prepared.port}" if prepared.port and planned is prepared.head else ""
        print_result(f"{styled(settings.name, bold=True)} would serve from {settings.image}{where}{listens}")
        print_result(f"  {shlex.join(settings.argv)}", hanging=4)
    if prepared.note:
        print_note(prepared.note)
