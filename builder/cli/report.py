"""``builder report``."""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli import output as printing
from builder.cli import progress
from builder.cli.context import Context, pass_context

_FILE, _FOLDER = "report.html", "report"


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"The file to write; {_FILE} here, unless given. With --publish the folder, ./{_FOLDER}.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in a browser.")
@click.option("--publish", is_flag=True, help="Write a folder for a static host: index.html and report.json.")
@click.option("--full", is_flag=True, help="Show paths, names of machines and notes as well.")
@pass_context
def report(context: Context, output: Path | None, opens: bool, publish: bool, full: bool) -> None:
    """Write one page that shows what serves what, and how well.

    One HTML file without scripts, which asks nothing of any server: what is stale, missing or unproven first; every
    model with its image, proof and history, drawn and as a table; what goes with what; every image and what changed
    since the one before. It is made from images.lock, builds/ and evidence/ alone, on any machine, and the same each
    time. Upstream's commits are told where this machine has them. Paths, names of machines and notes are left out,
    unless --full is given.
    """
    from builder.commands import report as command

    target = output or Path(_FOLDER if publish else _FILE)
    with progress.showing("drawing the page"):
        files = command.run(context.workspace(), target, publish=publish, full=full)
    for file in files:
        printing.print_result(str(file))
    if opens:
        _open(files[0])


def _open(file: Path) -> None:
    import webbrowser

    if not webbrowser.open(file.resolve().as_uri()):
        printing.print_note(f"no browser could be started: open {file} yourself")
