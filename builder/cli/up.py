"""``builder up``."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli import copies, progress, served_json
from builder.cli.container_options import requested
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_message, print_note
from builder.cli.serve_options import backend, overrides, serving_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.commands.up import UpResult
    from builder.commands.up_parts.part import UpPart
    from builder.events import Report

_DONE = {
    "here": "is here already",
    "built": "built",
    "pulled": "pulled",
    "rebuilt": "built again, as it was",
    "copied": "copied",
    "downloaded": "downloaded",
    "left": "left as it is",
    "started": "started",
}


@click.command()
@serving_options
@json_option
@pass_context
def up(
    context: Context,
    /,
    what: str,
    extra: tuple[str, ...],
    nodes: tuple[str, ...],
    detach: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Bring a model up: its image, its weights, its server.

    Builds the image of a recipe that has none yet; a number that is missing here is pulled from the registry of
    builder.yaml, or built again. Then downloads the model, starts the server as `builder run` does, waits until it
    answers, and prints the address. What is here already is left as it is: interrupted, the same command goes on. With
    --node it does so on those machines.

    Where the recipe names mods that the project lacks and builder knows a place of, it asks whether to bring each of
    them, and shows its scripts before it is taken. Nothing is fetched unasked.
    """
    from builder.cli.run import print_served
    from builder.commands import up as command
    from builder.serving.preparation import ServeRequest

    request = ServeRequest(
        what, overrides(options), extra, nodes, backend(options["ray"]), requested(options), force=force
    )
    if not as_json and sys.stdin.isatty():
        copies.offer_mods(context.project, command.lacking_mods(context.workspace(), what))
    with _reporter() as report:
        result = command.run(context.workspace(report), request, detach=detach)
    if as_json:
        print_json(_document(result))
    else:
        print_served(result.served)


@contextmanager
def _reporter() -> Iterator[Report]:
    """Shows each part as the command for it alone would, and a line once it is done."""
    from builder.commands.up_parts.part import PartBegan, PartEnded

    with ExitStack() as stack:
        current: Report = print_message

        def report(event: object) -> None:
            nonlocal current
            if isinstance(event, PartBegan):
                stack.close()
                current = stack.enter_context(progress.reporter())
            elif isinstance(event, PartEnded):
                stack.close()
                current = print_message
                _print_part(event.result)
            else:
                current(event)

        yield report


def _print_part(part: UpPart) -> None:
    took = "" if part.outcome in {"here", "left"} else f" in {humanize.duration(part.seconds)}"
    note = f": {part.note}" if part.note and part.outcome == "left" else ""
    print_note(f"{part.part}: {part.subject} {_DONE[part.outcome]}{took}{note}")


def _document(result: UpResult) -> dict[str, Any]:
    return {
        "parts": [
            {
                "part": part.part,
                "subject": part.subject,
                "outcome": part.outcome,
                "seconds": round(part.seconds, 1),
                "note": part.note or None,
            }
            for part in result.parts
        ],
        "server": served_json.document(result.served),
    }
