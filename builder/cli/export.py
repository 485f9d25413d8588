"""``builder export``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from builder.cli.completers import names
from builder.cli.container_options import container_options, requested
from builder.cli.context import Context, pass_context
from builder.cli.options import WordChoice
from builder.cli.output import print_document, print_note, print_result
from builder.cli.serve_options import backend, node_options, overrides, serve_options
from builder.commands.shared.export_formats import FORMATS

_WIDTH = max(map(len, FORMATS))
_LINES = "\n".join(f"{name:<{_WIDTH}}   {each.line}" for name, each in FORMATS.items())
_HELP = f"""\
Export what serves a recipe or a model, for other tools.

\b
{_LINES}

llama-swap and litellm are for all models that are paired where none is named: several models behind one port.

With several --node, compose and script give one text for each node that takes part: NODE.yaml or NODE.sh in the
folder of --output. Start those of the further nodes first, that of the first node last.
"""


@click.command(help=_HELP)
@click.argument("what", required=False, metavar="[RECIPE|MODEL]", shell_complete=names("recipes", "models"))
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM ARGUMENT…]")
@click.option("--format", "kind", type=WordChoice(list(FORMATS)), required=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write to this file; for several nodes to this folder.",
)
@click.option("--address", default="127.0.0.1", metavar="HOST", help="opencode, litellm: the machine that they ask.")
@serve_options
@node_options
@container_options
@pass_context
def export(
    context: Context,
    /,
    what: str | None,
    extra: tuple[str, ...],
    kind: str,
    output: Path | None,
    address: str,
    nodes: tuple[str, ...],
    **options: Any,
) -> None:
    """Exports, as the help says."""
    from builder.commands import export as command

    request = command.ExportRequest(
        what, kind, overrides(options), extra, address, nodes, backend(options["ray"]), requested(options)
    )
    exported = command.run(context.project, request, os.environ)
    for warning in exported.warnings:
        print_note(warning)
    several = len(exported.texts) > 1
    if output is None:
        for each in exported.texts:
            print_document((_heading(each.node, kind) if several else "") + each.text)
        return
    files = command.write(output, exported, executable=FORMATS[kind].executable)
    for file, each in zip(files, exported.texts, strict=True):
        print_result(f"{file}: {exported.image}" + (f" on {each.node}" if several else ""))
    if several:
        print_result(f"start {files[0]} last")


def _heading(node: str, kind: str) -> str:
    """Stands between the texts of several nodes: a stream of YAML has several documents."""
    return f"---\n# node {node}\n" if kind == "compose" else f"# ---- node {node} ----\n"
