"""``builder promote``."""

from __future__ import annotations

import click

from builder.cli import pointer_moves
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_result


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered"))
@click.option("--force", is_flag=True, help="Do it even though the image is marked bad, or lacks required evidence.")
@click.option("--note", default="", metavar="TEXT", help="Why, with --force; required where evidence is missing.")
@json_option
@pass_context
def promote(context: Context, image: str, force: bool, note: str, as_json: bool) -> None:
    """Make an image the current one: what `latest` means.

    Models stay with the images that they are paired with.
    """
    from builder.commands import promote as command

    result = command.run(context.workspace(), image, force=force, note=note)
    if as_json:
        print_json(
            {
                "image": str(result.image),
                "moves": pointer_moves.moves_json(result.moves),
                "differences": list(result.differences),
                "staying": list(result.staying),
            }
        )
    elif result.moves:
        pointer_moves.print_moves(result.moves, result.differences, result.staying, foreign=result.foreign)
    else:
        print_result(f"{result.image} was current already")
