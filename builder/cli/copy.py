"""``builder copy``."""

from __future__ import annotations

import click

from builder.cli import output
from builder.cli.completers import names
from builder.cli.context import Context, pass_context
from builder.cli.verbosity import verbosity_options


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…", shell_complete=names("nodes"))
@verbosity_options
@pass_context
def copy(context: Context, image: str, nodes: tuple[str, ...]) -> int:
    """Copy a numbered image to other machines.

    NODE is a name of builder.yaml. All nodes are served at the same time, and each gets only the layers that it lacks:
    through the registry of builder.yaml, or through one that runs on this machine during the copy. On each node the
    content is compared with images.lock before the number is set, and `latest` if it is current. If one node fails, the
    others go on; the exit code is then 1.
    """
    from builder.cli import progress
    from builder.commands import copy

    with progress.reporter() as report:
        result = copy.run(context.workspace(report), image, nodes)
    failed = {node: outcome.error for node, outcome in result.outcomes.items() if outcome.error}
    reached = ", ".join(node for node in result.outcomes if node not in failed)
    if reached:
        output.print_result(f"{result.image} is on {reached}{', and latest there' if result.latest else ''}")
    for node, error in failed.items():
        output.print_error(error, f"{result.image} is not on {node}:")
    return 1 if failed else 0
