"""``builder doctor``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from builder.cli import table
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_line
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from builder.diagnosis import Diagnosis

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@json_option
@pass_context
def doctor(context: Context, as_json: bool) -> int:
    """Look for anything that would make a build fail. Ends with 1 if there is such a thing."""
    from builder.commands import doctor as command

    findings = command.run(context.project, os.environ)
    if as_json:
        print_json({"findings": [_document(finding) for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
    return 1 if any(finding.verdict == "error" for finding in findings) else 0


def _document(finding: Diagnosis) -> dict[str, str]:
    """A finding for programs."""
    return {
        "subject": finding.subject,
        "verdict": finding.verdict,
        "said": finding.message,
        "remedy": finding.remedy,
    }


def _print(finding: Diagnosis) -> None:
    first, *rest = finding.message.splitlines()
    rows = [(finding.verdict, f"{finding.subject}:", first), *(("", "", line) for line in rest)]
    if finding.remedy:
        rows.append(("", "", f"→ {finding.remedy}"))
    headings = ("warning", "certificates:", "")  # the widest of each column, so that all findings stand in line
    for line in table.lines(headings, rows, table.width())[1:]:
        word = line[: len(finding.verdict)]
        verdict = styled(word, fg=_COLOURS[finding.verdict]) if word == finding.verdict else word
        print_line(verdict + line[len(word) :])
