"""``builder bench``."""

from __future__ import annotations

import click

from builder.cli import output
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.verbosity import verbosity_options


@click.command()
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.option(
    "--profile",
    default="quick",
    show_default=True,
    metavar="NAME",
    shell_complete=names("profiles"),
    help="quick, community, deep, or one under `bench:` in builder.yaml.",
)
@click.option(
    "--compare",
    "pair",
    nargs=2,
    metavar="A B",
    shell_complete=names("numbered"),
    help="Serve two numbers in turn, and tell if B is better or worse.",
)
@click.option(
    "--image",
    default="",
    metavar="IMAGE:N",
    shell_complete=names("numbered"),
    help="Serve this number, whichever is paired.",
)
@json_option
@verbosity_options
@pass_context
def bench(context: Context, what: str, profile: str, pair: tuple[str, str] | None, image: str, as_json: bool) -> int:
    """Measure how fast a model is served, or two images in turn.

    Throughput at depth by llama-benchy, the acceptance of drafted tokens, the memory that is left, the tokens that fit
    the cache and the time of the start. A server that runs is used; else one is started for it, and stopped at the end.
    The result is kept in evidence/ beside images.lock.

    With --compare, each number is served by itself, A B A B and so on: at least three rounds of each, eight at most,
    until the noise is smaller than the difference that counts.

    Ends with 1 if the server failed meanwhile, or B is worse.
    """
    from builder.cli import measured_text, progress
    from builder.commands import bench as command

    with progress.reporter() as report:
        workspace = context.workspace(report)
        compared = command.compare(workspace, what, pair, profile) if pair else None
        kept = command.run(workspace, what, profile, image) if compared is None else None
    if compared is not None:
        if as_json:
            output.print_json(measured_text.comparison_document(compared))
        else:
            measured_text.print_comparison(compared)
        return int(compared.judgement == "worse" or bool(compared.failures))
    if kept is None:
        return 1
    if as_json:
        output.print_json(measured_text.document(kept))
    else:
        measured_text.print_outcome(kept, str(context.project.root))
    return int(kept.outcome.verdict != "pass")
