"""``builder rollback``."""

from __future__ import annotations

import click

from builder.cli.complete import names
from builder.cli.context import Context, pass_context


@click.command()
@click.argument("target", metavar="MODEL|TARGET", shell_complete=names("models", "definitions", "recipes"))
@click.option("--to", type=click.IntRange(min=1), metavar="N", help="Go to number N instead of the one before.")
@click.option("--dry-run", is_flag=True, help="Say what would move, and move nothing.")
@pass_context
def rollback(context: Context, target: str, to: int | None, dry_run: bool) -> None:
    """Go back to the image before, or to a number. Never builds; run twice, it returns.

    \b
    MODEL    a model's pairing moves, other models stay
    TARGET   a definition or repository: its `latest` moves, models stay
             a recipe: both its image's `latest` and its model move
    """
    from builder import rollback as verb
    from builder.cli.say import say

    done = verb.run(context.project, context.endpoint, target, to, dry_run=dry_run, report=say)
    for move in done.moves:
        what = move.what if move.is_model else f"{move.what}:latest"
        click.echo(f"{'would move ' if dry_run else ''}{what}: {move.origin} → {move.to}")
    for model in done.staying:
        click.echo(f"  {model} stays; to move it too: builder rollback {model}")
