"""``builder probe``."""

from __future__ import annotations

import click

from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json
from builder.cli.verbosity import verbosity_options


@click.command()
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.argument("wanted", metavar="[NAME…]", nargs=-1, shell_complete=names("probes"))
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
def probe(context: Context, what: str, wanted: tuple[str, ...], image: str, as_json: bool) -> int:
    """Check a served model: tool calls, and checks of your own.

    \b
    NAME is
      tools-long   12 calls with 46 tools offered, each answer fed back, with
                   0, 50 and 75 % of the context full
      or that of a folder probes/NAME with a probe.yaml: a command of your own

    Without a name, all of them run. Each is repeated as often as its results differ. A server that
    runs is used; else one is started for it, and stopped at the end. The results are kept in evidence/ beside
    images.lock.

    Ends with 1 unless all of them passed.
    """
    from builder.cli import measured_text, progress
    from builder.commands import probe as command

    with progress.reporter() as report:
        results = tuple(command.run(context.workspace(report), what, wanted, image))
    if as_json:
        print_json({"probes": [measured_text.document(kept) for kept in results]})
    else:
        for kept in results:
            measured_text.print_outcome(kept, str(context.project.root))
    return int(any(kept.outcome.verdict != "pass" for kept in results))
