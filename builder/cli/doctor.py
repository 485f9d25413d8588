"""``builder doctor``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from builder.cli.context import Context, json_option, pass_context

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@json_option
@pass_context
def doctor(context: Context, as_json: bool) -> int:
    """Look for what would keep a build from working. Ends with 1 where something would."""
    from builder import doctor as verb

    findings = verb.run(context.project, os.environ)
    if as_json:
        document = {"schema_version": 1, "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        for finding in findings:
            first, *rest = finding.said.splitlines()
            verdict = click.style(f"{finding.verdict:8}", fg=_COLOURS[finding.verdict])
            click.echo(f"{verdict} {finding.subject + ':':13} {first}")
            for line in rest:
                click.echo(" " * 23 + line)
            if finding.remedy:
                click.echo(" " * 23 + f"→ {finding.remedy}")
    return 1 if any(finding.verdict == "error" for finding in findings) else 0
