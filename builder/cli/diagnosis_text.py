"""The result of a check of a machine or a project, as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.cli import table
from builder.cli.output import print_line
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from builder.diagnosis import Diagnosis

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def print_finding(finding: Diagnosis) -> None:
    """Prints a finding: its verdict, what it is about, what is so, and what to do."""
    first, *rest = finding.message.splitlines()
    rows = [(finding.verdict, f"{finding.subject}:", first), *(("", "", line) for line in rest)]
    if finding.remedy:
        rows.append(("", "", f"→ {finding.remedy}"))
    headings = ("warning", "certificates:", "")  # the widest of each column, so that all findings stand in line
    for line in table.lines(headings, rows, table.width())[1:]:
        word = line[: len(finding.verdict)]
        verdict = styled(word, fg=_COLOURS[finding.verdict]) if word == finding.verdict else word
        print_line(verdict + line[len(word) :])


def document(finding: Diagnosis) -> dict[str, str]:
    """A finding for programs."""
    return {
        "subject": finding.subject,
        "verdict": finding.verdict,
        "said": finding.message,
        "remedy": finding.remedy,
    }
