"""``builder matrix``."""

from __future__ import annotations

import click

from builder.cli import output, progress
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context


@click.command()
@click.option(
    "--models", multiple=True, metavar="MODEL,…", shell_complete=names("models", "recipes"), help="Only these models."
)
@click.option(
    "--images",
    multiple=True,
    metavar="IMAGE,…",
    shell_complete=names("numbered", "definitions"),
    help="Only these numbers, or all numbers of a repository or definition.",
)
@click.option("--html", "as_html", is_flag=True, help="Print the table as a page, for a file.")
@json_option
@pass_context
def matrix(context: Context, models: tuple[str, ...], images: tuple[str, ...], as_html: bool, as_json: bool) -> None:
    """Show which image goes with which model.

    A row for each number and proof, a column for each model: proven, changed, failed, stale, unclear or never tried, by
    the project's own last run. What others ran is marked, and counts for nothing here. --json names the file of each
    run.

    Below the table stands the command that proves the first pair that is missing or stale.
    """
    from builder.commands import matrix as command

    if as_html and as_json:
        raise click.UsageError("--html and --json are two forms of the table")
    with progress.showing("reading the runs"):
        table = command.run(context.workspace(), _split(models), _split(images))
    from builder.cli import matrix_text

    if as_html:
        output.print_document(command.page(table))
    elif as_json:
        output.print_json(matrix_text.document(table))
    else:
        matrix_text.print_matrix(table)


def _split(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The names of an option that may be given several times, or once with commas."""
    return tuple(name for text in texts for name in text.split(",") if name)
