"""``builder pair`` and ``builder mark``."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from builder.cli import change_colours, pointer_moves
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.options import WordChoice
from builder.cli.output import print_json, print_result

if TYPE_CHECKING:
    from builder.commands.pair import WeightsChange
    from builder.lock.model import ImageName, Status

STATUSES = ("good", "bad", "unmarked", "untested")


@click.command()
@click.argument("model", metavar="MODEL|RECIPE", shell_complete=names("models", "recipes"))
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered"))
@click.option("--force", is_flag=True, help="Do it even though the image is marked bad, or lacks required evidence.")
@click.option("--note", default="", metavar="TEXT", help="Why, with --force; required where evidence is missing.")
@click.option(
    "--checkpoint", metavar="NAME[@REVISION]", shell_complete=names("checkpoints"), help="The weights to serve it with."
)
@json_option
@pass_context
def pair(
    context: Context, model: str, image: str, force: bool, note: str, checkpoint: str | None, as_json: bool
) -> None:
    """Serve a model with an image.

    Other models stay where they are. `builder rollback MODEL` returns.
    """
    from builder.commands import pair as command

    result = command.run(context.workspace(), model, image, force=force, note=note, checkpoint=checkpoint)
    moved, weights = (result.move,) if result.move else (), result.weights
    if as_json:
        print_json(
            {
                "model": result.model,
                "image": str(result.image),
                "recipe": result.recipe,
                "moves": pointer_moves.moves_json(moved),
                "differences": list(result.differences),
                "weights": {"from": weights.before and str(weights.before), "to": str(weights.now)}
                if weights
                else None,
            }
        )
    elif moved:
        pointer_moves.print_moves(moved, result.differences, ())
        print_result(f"  by {result.recipe}" if result.recipe else "  no recipe: `builder build RECIPE` gives it one")
    elif weights:
        _print_weights(result.model, result.image, weights)
    else:
        print_result(f"{result.model} was paired with {result.image} already")


def _print_weights(model: str, image: ImageName, weights: WeightsChange) -> None:
    """Other weights with the same image: a rollback goes to another image, so the way back is told here."""
    before = weights.before
    own = before.short if before else "its own weights"
    print_result(f"{model} with {image}: {change_colours.moved(own, weights.now.short)}")
    if before:
        print_result(f"  back: `builder pair {model} {image} --checkpoint {before.short}`")


@click.command()
@click.argument("what", metavar="MODEL|RECIPE|IMAGE:N", shell_complete=names("models", "recipes", "numbered"))
@click.argument("status", type=WordChoice(STATUSES))
@click.option("--note", metavar="TEXT", help="What was observed. Without it the note of the same status stays.")
@json_option
@pass_context
def mark(context: Context, what: str, status: str, note: str | None, as_json: bool) -> None:
    """Record how well an image works, or a model on its image. A recipe stands for its model, an image without a number
    for the current one.

    An image that is marked bad is passed over by rollback, and neither promoted nor paired without --force.
    """
    from builder.commands import mark as command

    recorded = cast("Status", "untested" if status == "unmarked" else status)  # the word of images.lock
    result = command.run(context.workspace(), what, recorded, note)
    if as_json:
        print_json(
            {
                "what": result.what,
                "image": str(result.image),
                "status": result.status,
                "note": result.note,
                "changed": result.changed,
                "pointed_at_by": list(result.pointed_at_by),
            }
        )
        return
    on = "" if result.what == str(result.image) else f" on {result.image}"
    marked = "unmarked" if result.status == "untested" else f"marked {result.status}"
    sentence = f"{result.what}{on} {'is' if result.changed else 'was'} {marked}"
    print_result(sentence + ("" if result.changed else " already") + (f": {result.note}" if result.note else ""))
    for pointer in result.pointed_at_by:
        print_result(f"  {pointer} still points at it; to go back: `builder rollback {pointer}`")
