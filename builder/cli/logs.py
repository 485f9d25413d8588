"""``builder logs``."""

from __future__ import annotations

import click

from builder.cli.completers import names
from builder.cli.context import Context, pass_context


@click.command()
@click.argument("what", metavar="[RECIPE|MODEL]", required=False, shell_complete=names("recipes", "models"))
@click.option("--follow", "-f", is_flag=True, help="Go on with what is printed from now on.")
@click.option("--tail", "-n", type=click.IntRange(min=0), metavar="N", help="Only the last N lines so far.")
@click.option("--node", metavar="NAME", shell_complete=names("nodes"), help="Of several nodes that serve, this one's.")
@pass_context
def logs(context: Context, what: str | None, follow: bool, tail: int | None, node: str | None) -> None:
    """Show what a server prints. Without a name: the only one there is."""
    from builder.commands import logs as command

    lines = command.follow if follow else command.run
    for line in lines(context.workspace(), what, node, tail):
        click.echo(line)
