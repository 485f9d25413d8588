"""``builder lock --recover`` and ``builder lock --renumber``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder.cli.say import document, say

if TYPE_CHECKING:
    from builder.cli.context import Context


def recover(context: Context, as_json: bool) -> None:
    """Makes a lost images.lock again and tells what could not be known."""
    from builder.verbs import recover as verb

    done = verb.run(context.project, context.endpoint, say)
    if as_json:
        document(
            {
                "images": [str(name) for name in done.images],
                "unknown": list(done.unknown),
                "damaged": done.damaged or None,
            }
        )
        return
    click.echo(f"images.lock records {len(done.images)} images again: {', '.join(map(str, done.images))}")
    if done.damaged:
        click.echo(f"the damaged one is kept as {done.damaged}")
    click.echo("not known:")
    for line in done.unknown:
        click.echo(f"  {line}")


def renumber(context: Context, as_json: bool) -> None:
    """Keeps both images where two branches gave one number to different ones."""
    from builder.verbs import renumber as verb

    done = verb.run(context.project, context.endpoint, say)
    if as_json:
        document(
            {
                "renumbered": [
                    {
                        "from": str(one.origin),
                        "to": str(one.to),
                        "fingerprint": one.image.fingerprint,
                        "build_directory": one.directory,
                    }
                    for one in done.renumbered
                ],
                "chosen": list(done.chosen),
                "tagged": [str(name) for name in done.tagged],
                "written": done.written,
            }
        )
        return
    for one in done.renumbered:
        click.echo(f"{one.origin}, built {one.image.built}, is now {one.to}")
        if not one.directory:
            click.echo(f"  its build directory was found nowhere: take it back with git as builds/{one.to}")
    for line in done.chosen:
        click.echo(f"both sides changed {line}: the first one's was kept")
    for name in done.tagged:
        click.echo(f"{name} has its tag in this engine")
    if done.written:
        click.echo("images.lock is whole again; to go on: git add images.lock builds")
    elif not done.tagged:
        click.echo("nothing to mend")
