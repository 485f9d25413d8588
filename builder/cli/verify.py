"""``builder verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder.cli import progress, table
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_line, print_result
from builder.cli.terminal_text import styled
from builder.errors import ConflictError, EngineError, ImageStateError

if TYPE_CHECKING:
    from builder.commands.verify import Discrepancy

# The gravest first: it decides how the command ends.
_CODES = {
    "missing": ImageStateError.exit_code,
    "moved": ImageStateError.exit_code,
    "unknown": EngineError.exit_code,
    "edited": ConflictError.exit_code,
    "changed": 0,
    "foreign": 0,
}
_COLOURS = {
    "missing": "red",
    "moved": "red",
    "unknown": "yellow",
    "edited": "red",
    "changed": "cyan",
    "foreign": "cyan",
}


@click.command()
@click.option("--registry", is_flag=True, help="Compare with the registry of builder.yaml as well.")
@json_option
@pass_context
def verify(context: Context, registry: bool, as_json: bool) -> int:
    """Compare images.lock with the engine and with the files.

    \b
    Ends with
      7  if an image is missing or moved
      5  if no engine answers
      1  if a build directory or a vendored patch was edited or is gone
      0  otherwise; what has changed since, and a `latest` of another project, are listed, but are no errors
    """
    from builder.commands import verify as command

    with progress.showing("comparing images.lock with what is there"):
        findings = command.run(context.workspace())
        if registry:
            findings = (*findings, *command.compare_registry(context.workspace()))
    if as_json:
        print_json({"findings": [_document(finding) for finding in findings]})
    else:
        rows = [(finding.kind, _line(finding)) for finding in findings]
        for line in table.lines(("missing", ""), rows, table.width())[1:]:
            word, gap, rest = line.partition(" ")
            print_line(styled(word, fg=_COLOURS.get(word)) + gap + rest)
        if not findings:
            print_result("all is as images.lock has it")
    return next((code for kind, code in _CODES.items() if any(f.kind == kind for f in findings)), 0)


def _document(finding: Discrepancy) -> dict[str, str]:
    """A finding for programs."""
    return {"subject": finding.subject, "kind": finding.kind, "said": finding.message, "remedy": finding.remedy}


def _line(finding: Discrepancy) -> str:
    return f"{finding.subject}: {finding.message}" + (f" → {finding.remedy}" if finding.remedy else "")
