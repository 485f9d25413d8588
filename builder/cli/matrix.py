"""``builder matrix``."""

from __future__ import annotations

import click

from builder.cli import output, progress
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.events import Message


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
@click.option("--fill", is_flag=True, help="Prove what was never tried or is stale, the cheapest first.")
@click.option("--bench", is_flag=True, help="With --fill, measure as well, where a server may run.")
@click.option(
    "--profile",
    default="quick",
    show_default=True,
    metavar="NAME",
    shell_complete=names("profiles"),
    help="The profile of --bench.",
)
@click.option("--dry-run", is_flag=True, help="With --fill, only show what would be tried.")
@json_option
@pass_context
def matrix(
    context: Context,
    models: tuple[str, ...],
    images: tuple[str, ...],
    as_html: bool,
    fill: bool,
    bench: bool,
    profile: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Show which image goes with which model, and fill the gaps.

    A row for each number and proof, a column for each model: proven, changed, failed, stale, unclear or never tried, by
    the project's own last run. What others ran is marked, and counts for nothing here. --json names the file of each
    run.

    With --fill, what is missing is proven, one model on one image at a time, by how long it took before; with --bench
    also measured, where no server of the model is in the way. Every run is kept as it ends: interrupted, the same
    command goes on with the rest.

    \b
    Ends with
      0  if the table was shown, or everything missing was tried
      1  if something that is missing could not be tried
    """
    from builder.commands import matrix as command

    if as_html and as_json:
        raise click.UsageError("--html and --json are two forms of the table")
    if not fill and (bench or dry_run):
        raise click.UsageError(f"{'--bench' if bench else '--dry-run'} goes with --fill")
    wanted = _split(models), _split(images)
    code = _fill(context, *wanted, profile if bench else "", dry_run=dry_run) if fill else 0
    if dry_run:
        return code
    with progress.showing("reading the runs"):
        table = command.run(context.workspace(), *wanted)
    from builder.cli import matrix_text

    if as_html:
        output.print_document(command.page(table))
        return code
    if as_json:
        output.print_json(matrix_text.document(table))
    else:
        matrix_text.print_matrix(table)
    return code


def _split(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The names of an option that may be given several times, or once with commas."""
    return tuple(name for text in texts for name in text.split(",") if name)


def _fill(context: Context, models: tuple[str, ...], images: tuple[str, ...], profile: str, *, dry_run: bool) -> int:
    """Tries what is missing, and tells each result; returns the exit code."""
    from builder.cli import matrix_text, progress
    from builder.commands import matrix_fill

    with progress.reporter() as report:
        workspace = context.workspace(report)
        planned = matrix_fill.plan(workspace, models, images, profile)
        for line in matrix_text.of_plan(planned, every_step=dry_run):
            report(Message(line))
        if dry_run:
            return 0
        filled = []
        for step in matrix_fill.run(workspace, planned):
            filled.append(step)
            report(Message(matrix_text.of_step(step)))
    return int(any(step.problem for step in filled))
