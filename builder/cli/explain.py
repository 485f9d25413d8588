"""``builder explain``."""

from __future__ import annotations

import click

from builder.cli.context import json_option
from builder.cli.output import print_json, print_line, print_result
from builder.cli.terminal_text import styled


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KEY|CODE|MESSAGE")
@json_option
def explain(words: tuple[str, ...], as_json: bool) -> None:
    """Explain an exit code, a key of a file, or a message.

    \b
    builder explain 7                    an exit code
    builder explain serve.gpus           a key, in every file that has it
    builder explain recipe:env           the key of one file
    builder explain run-json:server      a key that `builder run --json` prints
    builder explain 'no mod `x` in …'    what `builder recipes check` said of a recipe

    The texts are those of docs/reference.
    """
    from builder.commands import explain as command

    explanations = command.run(" ".join(words))
    if as_json:
        print_json(
            {
                "explanations": [
                    {"kind": each.kind, "subject": each.subject, "text": list(each.lines)} for each in explanations
                ]
            }
        )
        return
    for number, each in enumerate(explanations):
        if number:
            print_line()
        print_result(styled(f"{each.kind} {each.subject}" if each.kind == "exit code" else each.subject, bold=True))
        for line in each.lines:
            print_result(f"  {line}", hanging=4)
