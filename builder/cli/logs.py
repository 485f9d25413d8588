"""``builder logs``."""

from __future__ import annotations

import click

from builder.cli.completers import names
from builder.cli.context import Context, pass_context
from builder.cli.output import print_log


@click.command()
@click.argument("what", metavar="[RECIPE|MODEL]", required=False, shell_complete=names("recipes", "models"))
@click.option("--follow", "-f", is_flag=True, help="Keep printing what comes.")
@click.option("--tail", "-n", type=click.IntRange(min=0), metavar="N", help="Start with the last N lines.")
@click.option(
    "--node", metavar="NAME", shell_complete=names("nodes"), help="The server on this node, if there are several."
)
@pass_context
def logs(context: Context, what: str | None, follow: bool, tail: int | None, node: str | None) -> None:
    """Show what a server prints. Without a name: the only one that runs."""
    from builder.commands import logs as command

    lines = command.follow if follow else command.run
    for line in lines(context.workspace(), what, node, tail):
        print_log(line)
