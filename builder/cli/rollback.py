"""``builder rollback``."""

from __future__ import annotations

import click

from builder.cli import pointer_moves
from builder.cli.completers import names, numbers
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_result

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
@click.option("--force", is_flag=True, help="Go to number N even if it is marked bad, or lacks required evidence.")
@click.option("--dry-run", is_flag=True, help="Show what would move, and move nothing.")
@click.option("--restart", is_flag=True, help="Restart the servers of what moves, from the image that it goes to.")
@json_option
@pass_context
def rollback(
    context: Context, target: str, to: int | None, force: bool, dry_run: bool, restart: bool, as_json: bool
) -> None:
    """Go back to the image before, or to a number. Never builds; run twice, it returns.

    Numbers that are marked bad or pruned, that did not pass their proof, or hold no vLLM are passed over, and named.
    --to goes to any number, after what is known of it is printed. Ends with 1 if there is nothing to go back to.

    \b
    MODEL    a model's pairing moves, other models stay
    TARGET   a definition or repository: its `latest` moves, models stay
             a recipe: both its image's `latest` and its model move
    """
    from builder.commands import rollback as command

    if restart and (dry_run or as_json):
        raise click.UsageError(f"--restart goes with no {'--dry-run' if dry_run else '--json'}")
    roll_back = command.preview if dry_run else command.run
    result = roll_back(context.workspace(), target, to, force=force)
    if as_json:
        print_json(
            {
                "moved": not dry_run,
                "moves": pointer_moves.moves_json(result.moves),
                "passed_over": [str(name) for name in result.passed],
                "reasons": {str(name): reason for name, reason in result.passed.items()},
                "differences": list(result.differences),
                "staying": list(result.staying),
                "serving": [
                    {"name": server.name, "model": server.model, "image": server.image} for server in result.serving
                ],
            }
        )
        return
    would = "would move " if dry_run else ""
    pointer_moves.print_moves(result.moves, result.differences, result.staying, would, result.foreign)
    for name, reason in result.passed.items():
        print_result(f"  passed over: {name} {reason}")
    for server in result.serving:
        if restart:
            _restart(context, server.name)
        else:
            print_result(
                f"  {server.name} {_STAYS[dry_run]} {server.image}: `builder restart {server.name}` changes over"
            )


def _restart(context: Context, name: str) -> None:
    from builder.cli import progress
    from builder.cli.run import print_served
    from builder.commands import restart as command
    from builder.serving.preparation import ServeRequest

    with progress.reporter() as report:
        result = command.run(context.workspace(report), ServeRequest(name, {}), detach=False)
    print_served(result)
