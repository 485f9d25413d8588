"""``builder schema``."""

from __future__ import annotations

import click

from builder.cli.options import WordChoice
from builder.cli.output import print_document, print_line

FILES = ("image", "mod", "recipe", "builder", "probe", "checkpoint", "lock", "evidence")
OUTPUTS = (
    *("build-json", "run-json", "stop-json", "download-json", "up-json", "init-json", "explain-json"),
    *("status-json", "list-json"),
)
NAMES = FILES + OUTPUTS


@click.command()
@click.argument("name", required=False, type=WordChoice(NAMES), metavar=f"[{'|'.join(FILES)}|COMMAND-json]")
def schema(name: str | None) -> None:
    """Print the JSON Schema of a file, for editors.

    COMMAND-json is what `builder COMMAND --json` prints. Without a name, tell where each schema is. An editor with a
    YAML language server checks and completes a file whose first line is

    \b
        # yaml-language-server: $schema=PATH
    """
    from builder.cli import table
    from builder.commands import schemas

    if name is not None:
        print_document(schemas.text(name))
        return
    rows = [(each, schemas.title(each), str(schemas.FILES[each])) for each in NAMES]
    for each, title, path in rows:
        for line in table.lines(("builder", ""), [(each, title), ("", path)], table.width())[1:]:
            print_line(line)
