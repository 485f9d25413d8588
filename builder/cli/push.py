"""``builder push``."""

from __future__ import annotations

import click

from builder.cli.complete import names
from builder.cli.context import Context, pass_context
from builder.cli.verbosity import verbosity_options


@click.command()
@click.argument("images", nargs=-1, required=True, metavar="IMAGE:N…", shell_complete=names("numbered"))
@verbosity_options
@pass_context
def push(context: Context, images: tuple[str, ...]) -> None:
    """Push numbered images to the registry.

    It is that of builder.yaml; images.lock records the digests. The current number becomes `latest` there too. A number
    that the registry has with other content is not overwritten. Logins are Docker's own: `docker login REGISTRY`.
    """
    from builder.cli import transfers
    from builder.verbs import push as verb

    with transfers.shown() as report:
        done = verb.run(context.project, context.endpoint, images, report)
    for one in done:
        said = "is there already" if one.already else "pushed"
        click.echo(f"{one.image} {said}{', now latest' if one.latest else ''}: {one.reference}@{one.digest}")
