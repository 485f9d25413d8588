"""``builder rebuild``."""

from __future__ import annotations

import click

from builder import humanize
from builder.cli.completers import names
from builder.cli.context import Context, pass_context
from builder.cli.options import parse_settings, set_option
from builder.cli.output import print_result
from builder.cli.verbosity import verbosity_options


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@set_option
@verbosity_options
@pass_context
def rebuild(context: Context, image: str, settings: tuple[str, ...]) -> int:
    """Rebuild a number from its build directory.

    Ends with 1 if the content differs. A number that is missing from the engine gets its tag back if the content is the
    same. --set takes build_jobs alone.
    """
    from builder.cli import build_progress
    from builder.commands import rebuild as command

    with build_progress.reporter() as report:
        result = command.run(context.workspace(report), image, parse_settings(settings))
    took = f"in {humanize.duration(result.seconds)}"
    if result.same:
        print_result(
            f"{result.image} built again {took}: the same content" + (", tagged again" if result.restored else "")
        )
        return 0
    print_result(f"{result.image} built again {took}: other content, which was not kept")
    print_result(f"  recorded  {result.recorded}\n  built     {result.fingerprint}\n  log: {result.log}")
    return 1
