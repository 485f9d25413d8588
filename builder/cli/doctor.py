"""``builder doctor``."""

from __future__ import annotations

import os

import click

from builder.cli import diagnosis_text, progress
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json


@click.command()
@click.option(
    "--check-update",
    "releases",
    is_flag=False,
    flag_value="",
    metavar="[ADDRESS]",
    help="Ask the repository that this program comes from, or the one at ADDRESS, for a newer release.",
)
@json_option
@pass_context
def doctor(context: Context, releases: str | None, as_json: bool) -> int:
    """Look for anything that would make a build fail. Ends with 1 if there is such a thing."""
    from builder.commands import doctor as command

    with progress.showing("looking at machine and project"):
        findings = command.run(context.project, os.environ, releases=releases)
    if as_json:
        print_json({"findings": [diagnosis_text.document(finding) for finding in findings]})
    else:
        for finding in findings:
            diagnosis_text.print_finding(finding)
    return 1 if any(finding.verdict == "error" for finding in findings) else 0
