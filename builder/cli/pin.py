"""``builder pin`` and ``builder unpin``."""

from __future__ import annotations

import click

from builder.cli.complete import names
from builder.cli.context import Context, pass_context


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@pass_context
def pin(context: Context, image: str) -> None:
    """Keep an image when others are pruned."""
    _set(context, image, pinned=True)


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@pass_context
def unpin(context: Context, image: str) -> None:
    """Let an image go when others are pruned."""
    _set(context, image, pinned=False)


def _set(context: Context, image: str, *, pinned: bool) -> None:
    from builder import protect
    from builder.cli.say import say

    name, changed = protect.run(context.project, image, pinned=pinned, report=say)
    word = "pinned" if pinned else "not pinned"
    click.echo(f"{name} is {word}" if changed else f"{name} was {word} already")
