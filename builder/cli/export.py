"""``builder export``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from builder.cli.completers import names
from builder.cli.context import Context, pass_context
from builder.cli.options import WordChoice
from builder.cli.output import print_note, print_result
from builder.cli.serve_options import overrides, serve_options


@click.command()
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM ARGUMENT…]")
@click.option("--format", "kind", type=WordChoice(["compose", "recipe", "script", "opencode"]), required=True)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write to FILE.")
@click.option("--address", default="127.0.0.1", metavar="HOST", help="opencode: the machine that clients ask.")
@serve_options
@pass_context
def export(
    context: Context,
    /,
    what: str,
    extra: tuple[str, ...],
    kind: str,
    output: Path | None,
    address: str,
    **options: Any,
) -> None:
    """Export what serves a recipe or a model, for other tools.

    \b
    compose    a compose file, the image pinned by its number
    recipe     a recipe that makes other launchers serve this very image
    script     a shell script with a plain docker run
    opencode   the provider for OpenCode's configuration
    """
    from builder.commands import export as command

    request = command.ExportRequest(what, kind, overrides(options), extra, address)
    exported = command.run(context.project, request, os.environ)
    for warning in exported.warnings:
        print_note(warning)
    if output is None:
        click.echo(exported.text, nl=False)
        return
    command.write(output, exported.text, executable=kind == "script")
    print_result(f"{output}: {exported.image}")
