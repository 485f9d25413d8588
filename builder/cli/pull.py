"""``builder pull``."""

from __future__ import annotations

import click

from builder.cli.completers import names
from builder.cli.context import Context, pass_context
from builder.cli.output import print_result
from builder.cli.verbosity import verbosity_options


@click.command()
@click.argument("image", metavar="IMAGE:N|RECIPE", shell_complete=names("numbered", "recipes", "models"))
@verbosity_options
@pass_context
def pull(context: Context, image: str) -> None:
    """Pull a numbered image from the registry.

    For a recipe or a model: the image that serves it. It is pulled by the digest in images.lock, and gets its number
    only when its content is what was recorded.
    """
    from builder.cli import progress
    from builder.commands import pull as command

    with progress.reporter() as report:
        result = command.run(context.workspace(report), image)
    outcome = f"pulled, {result.layers}" if result.layers else "is here already"
    print_result(f"{result.image} {outcome}")
