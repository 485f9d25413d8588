"""``builder stop``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli import progress
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_note, print_result

if TYPE_CHECKING:
    from builder.commands.stop import Stopped


@click.command()
@click.argument("what", metavar="[RECIPE|MODEL]", required=False, shell_complete=names("recipes", "models"))
@click.option(
    "--time",
    "seconds",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    default=60,
    show_default=True,
    help="How long it may take to finish, before it is killed.",
)
@json_option
@pass_context
def stop(context: Context, what: str | None, seconds: int, as_json: bool) -> None:
    """Stop the server of a model.

    It may finish its requests, and is killed when its time is up. Without a name: the only one that runs.
    """
    from builder.commands import stop as command

    with progress.showing("stopping"):
        result = command.run(context.workspace(), what, seconds)
    if as_json:
        print_json({"server": _document(result)})
        return
    for name in result.killed:
        print_note(f"{name} was killed: it had not ended in {seconds} seconds")
    print_result(
        f"{result.server.name} stopped after {humanize.duration(result.seconds)}; it served from {result.server.image}"
    )


def _document(stopped: Stopped) -> dict[str, Any]:
    return {
        "name": stopped.server.name,
        "model": stopped.server.model or None,
        "image": stopped.server.image,
        "seconds": round(stopped.seconds, 1),
        "killed": list(stopped.killed),
    }
