"""``builder push``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder.cli.completers import names
from builder.cli.context import Context, pass_context
from builder.cli.output import print_result
from builder.cli.verbosity import verbosity_options

if TYPE_CHECKING:
    from builder.commands.push import PushedImage


@click.command()
@click.argument("images", nargs=-1, required=True, metavar="IMAGE:N…", shell_complete=names("numbered"))
@verbosity_options
@pass_context
def push(context: Context, images: tuple[str, ...]) -> None:
    """Push numbered images to the registry.

    The registry is that of builder.yaml; images.lock records the digests. The current number becomes `latest` there
    too. A number that the registry has with other content is not overwritten. To log in: `docker login REGISTRY`.
    """
    from builder.cli import progress
    from builder.commands import push as command

    with progress.reporter() as report:
        pushed_images = command.run(context.workspace(report), images)
    for image in pushed_images:
        print_pushed(image)


def print_pushed(pushed: PushedImage) -> None:
    """Prints the result of one push."""
    outcome = "is there already" if pushed.already else "pushed"
    print_result(
        f"{pushed.image} {outcome}{', now latest' if pushed.latest else ''}: {pushed.reference}@{pushed.digest}"
    )
    if not pushed.already:
        print_result(f"  sign it with: `cosign sign {pushed.reference.rpartition(':')[0]}@{pushed.digest}`")
