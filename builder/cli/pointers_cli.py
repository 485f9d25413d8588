"""The command line of builder pair, mark, keep, release, promote and rollback."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from builder import commands
from builder.base import words
from builder.cli import output
from builder.cli.options import Context, WordChoice, json_and_context, names, numbers, together
from builder.cli.output import data, print_json, print_result

if TYPE_CHECKING:
    from builder.lock.model import Status
    from builder.numbers.pointers import PointerMove


SHOWN_DIFFERENCES = 8


def print_moves(
    moves: Sequence[PointerMove],
    differences: tuple[str, ...],
    staying: tuple[str, ...],
    would: str = "",
    foreign: Collection[str] = (),
) -> None:
    """Prints a line for each pointer, from → to; for ``foreign`` repositories, ``latest`` is not moved. Then prints the
    differences between the images, and the models that stay."""
    for move in moves:
        what = move.what if move.is_model else f"{move.what}:latest"
        if move.what in foreign:
            what = f"{move.what}, the current image here"  # the tag is not moved, which is reported separately
        print_result(f"{would}{what}: {output.moved(str(move.origin or 'nothing'), str(move.to))}")
    for line in differences[:SHOWN_DIFFERENCES]:
        print_result(f"  {line}")
    if len(differences) > SHOWN_DIFFERENCES:
        shows_all = f"`builder diff {moves[0].origin} {moves[0].to}` shows all"
        print_result(f"  … and {len(differences) - SHOWN_DIFFERENCES} more; {shows_all}")
    to = next((move.to for move in moves if not move.is_model), None)
    for model in staying:
        print_result(f"  {model} stays; to move it too: `builder pair {words.shell_word(model)} {to}`")


def _moves(moves: Iterable[PointerMove]) -> list[dict[str, Any]]:
    return [
        {"what": move.what, "kind": "model" if move.is_model else "repository", **data(move, "from=origin to")}
        for move in moves
    ]


STATUSES = ("good", "bad", "unmarked", "untested")
evidence_options = together(
    click.option("--force", is_flag=True, help="Continue even if the image is marked bad, or lacks required evidence."),
    click.option(
        "--note", default="", metavar="TEXT", help="Record this reason with --force; required if evidence is missing."
    ),
)


@click.command()
@click.argument("model", metavar="MODEL|RECIPE", shell_complete=names("models", "recipes"))
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered"))
@evidence_options
@click.option(
    "--checkpoint", metavar="NAME[@REVISION]", shell_complete=names("checkpoints"), help="Serve this checkpoint."
)
@json_and_context
def pair(
    context: Context, model: str, image: str, force: bool, note: str, checkpoint: str | None, as_json: bool
) -> None:
    """Choose the image that serves a model.

    Other models keep their images. To go back: `builder rollback MODEL`.
    """
    result = commands.pointing.pair_model(
        context.workspace(), model, image, force=force, note=note, checkpoint=checkpoint
    )
    moved, weights = (result.move,) if result.move else (), result.weights
    if as_json:
        print_json(
            {
                **data(result, "model image recipe"),
                "moves": _moves(moved),
                "differences": result.differences,
                "weights": data(weights, "from=before to=now"),
            }
        )
    elif moved:
        print_moves(moved, result.differences, ())
        add = f"`builder pair RECIPE {result.image}`"
        print_result(f"  recipe: {result.recipe}" if result.recipe else f"  no recipe; to add one: {add}")
    elif weights:
        # A rollback would go to another image, so print the command that restores the previous weights.
        before, same = weights.before, f"{result.model} with {result.image}"
        print_result(f"{same}: {output.moved(before.short if before else 'its own weights', weights.now.short)}")
        if before:
            again = f"builder pair {words.shell_word(result.model)} {result.image} --checkpoint {before.short}"
            print_result(f"  to go back: `{again}`")
    elif result.is_new_recipe:
        print_result(f"{result.model} is still paired with {result.image}; its recipe is now {result.recipe}")
    else:
        print_result(f"{result.model} is already paired with {result.image}")


@click.command()
@click.argument("what", metavar="MODEL|RECIPE|IMAGE:N", shell_complete=names("models", "recipes", "numbered"))
@click.argument("status", type=WordChoice(STATUSES))
@click.option(
    "--note",
    metavar="TEXT",
    help="Record what you observed. Without it, the earlier note stays if the status is the same.",
)
@json_and_context
def mark(context: Context, what: str, status: str, note: str | None, as_json: bool) -> None:
    """Record how well an image works, or a model on its image.

    A recipe means its model. An image without a number means the current image. `unmarked` or `untested` removes the
    mark.

    Rollback skips an image that is marked bad. Promoting or pairing such an image requires --force.
    """
    recorded = cast("Status", "untested" if status == "unmarked" else status)  # the word in images.lock
    result = commands.pointing.mark_image(context.workspace(), what, recorded, note)
    if as_json:
        print_json(result, "what image status note changed pointed_at_by")
        return
    on = "" if result.what == str(result.image) else f" on {result.image}"
    marked = "unmarked" if result.status == "untested" else f"marked {result.status}"
    sentence = f"{result.what}{on} {'is' if result.changed else 'was already'} {marked}"
    print_result(sentence + (f": {result.note}" if result.note else ""))
    for pointer in result.pointed_at_by:
        back = f"to go back: `builder rollback {words.shell_word(pointer)}`"
        if pointer in result.stuck:
            back = "no earlier image fits; `builder list` shows all images"
        print_result(f"  {pointer} still points to this image; {back}")


def _keeping(name: str, text: str, *, kept: bool) -> click.Command:
    @click.command(name, help=text)
    @click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions", "models", "recipes"))
    @json_and_context
    def command(context: Context, image: str, as_json: bool) -> None:
        name, changed = commands.pointing.keep_image(context.workspace(), image, kept=kept)
        if as_json:
            print_json({"image": name, "pinned": kept, "changed": changed})
            return
        word = "kept" if kept else "not kept"
        which = "" if image.endswith(f":{name.number}") else f", the image that {image} means now,"
        print_result(f"{name}{which} is {word}" if changed else f"{name}{which} was already {word}")

    return command


_KEEP = """Protect an image from `builder prune`.

A model or a recipe means the image that serves it. An image without a number means the current image.
"""
keep = _keeping("keep", _KEEP, kept=True)
release = _keeping("release", "Undo `builder keep`: let `builder prune` remove the image.", kept=False)


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered"))
@evidence_options
@json_and_context
def promote(context: Context, image: str, force: bool, note: str, as_json: bool) -> None:
    """Make an image the current one, and move `latest` to it.

    Each model stays with the image that it is paired with.
    """
    result = commands.pointing.promote_image(context.workspace(), image, force=force, note=note)
    if as_json:
        print_json({"image": result.image, "moves": _moves(result.moves), **data(result, "differences staying")})
    elif result.moves:
        print_moves(result.moves, result.differences, result.staying, foreign=result.foreign)
    else:
        corrected = f"; {result.image.repository}:latest points to it again" if result.corrected else ""
        print_result(f"{result.image} is already current{corrected}")


_STAYS = {False: "still serves from", True: "would still serve from"}


@click.command()
@click.argument("target", metavar="MODEL|TARGET", shell_complete=names("models", "definitions", "recipes"))
@click.option(
    "--to",
    type=click.IntRange(min=1),
    metavar="N",
    shell_complete=numbers,
    help="Go to number N instead of the previous one.",
)
@click.option("--force", is_flag=True, help="Go to number N even if N is marked bad, or lacks required evidence.")
@click.option("--dry-run", is_flag=True, help="Show what would move, but move nothing.")
@click.option("--restart", is_flag=True, help="Restart the affected servers from their new image.")
@json_and_context
def rollback(
    context: Context, target: str, to: int | None, force: bool, dry_run: bool, restart: bool, as_json: bool
) -> None:
    """Go back to the previous image, or to a number.

    A second run undoes the first one. The command lists numbers that it skips: they are marked bad, were pruned, failed
    their proof, or contain no vLLM. --to goes to any number; the command first shows what is known about the number.

    Nothing is built if the engine has the image. A missing image is pulled from the registry, copied from a node, or
    built again. The command ends with 1 if there is no earlier image.

    \b
    MODEL    the model's pairing moves; other models stay
    TARGET   a definition or repository: its `latest` moves; models stay
             a recipe: both the `latest` of its image and its model move
    """
    if restart and (dry_run or as_json):
        raise click.UsageError(f"--restart cannot be combined with {'--dry-run' if dry_run else '--json'}")
    roll_back = commands.rollback.preview_rollback if dry_run else commands.rollback.roll_back
    result = roll_back(context.workspace(), target, to, force=force)
    if as_json:
        print_json(
            {
                "moved": not dry_run,
                "moves": _moves(result.moves),
                "passed_over": list(result.passed),
                "reasons": result.passed,
                **data(result, "differences staying serving(name model image)"),
            }
        )
        return
    would = "would move " if dry_run else ""
    print_moves(result.moves, result.differences, result.staying, would, result.foreign)
    for name, reason in result.passed.items():
        print_result(f"  skipped: {name} {reason}")
    for server in result.serving:
        if restart:
            from builder.cli.serve_cli import print_served
            from builder.serving.preparation import ServeRequest

            with context.working() as workspace:
                restarted = commands.servers.restart_server(workspace, ServeRequest(server.name, {}), detach=False)
            print_served(restarted)
        else:
            print_result(
                f"  {server.name} {_STAYS[dry_run]} {server.image}; to switch: `builder restart {server.name}`"
            )
    if restart and not result.serving:
        print_result("  no server of this machine has to be restarted; `builder status` shows all servers")
