"""The end of a bisection in words, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.bisecting.session import Bisection
    from builder.commands.bisect_parts.report import BisectReport, FoundCulprit

_SHOWN_FILES, _SHOWN_LINES = 5, 40


def lines(report: BisectReport) -> Iterator[tuple[str, int]]:
    """The lines to print, each with how far it hangs."""
    if report.look:
        at = f" at {report.look.address}" if report.look.address else ""
        yield f"look at {styled(report.look.image, bold=True)}{at}", 2
        yield "  then `builder bisect good`, `builder bisect bad` or `builder bisect skip`", 4
        return
    if report.problem or report.conclusion is None:
        first, *rest = report.problem.splitlines()
        yield f"{styled('cannot tell', fg='yellow', bold=True)}: {first}", 2
        yield from ((f"  {line}", 4) for line in rest)
        return
    word = "mended" if report.bisection.find_fix else "broken"
    units = styled(" and ".join(culprit_found.culprit.unit for culprit_found in report.culprits), bold=True)
    together = ", which could only be tried together" if report.conclusion.joint else ""
    what = f"{styled(report.bisection.target, bold=True)} was {word} by {units}"
    yield f"{what}{together}, in {report.conclusion.steps} steps", 2
    if report.between:
        older, newer = (f"{report.bisection.repository}:{number}" for number in report.between)
        yield f"  it came between {older} and {newer}", 4
    for culprit_found in report.culprits:
        yield from _culprit(culprit_found)
    if report.folder:
        yield f"  {report.folder} has the build directories of the images on either side", 4


def _culprit(culprit_found: FoundCulprit) -> Iterator[tuple[str, int]]:
    culprit, commit = culprit_found.culprit, culprit_found.commit
    if commit:
        yield f"  {culprit.unit}: {commit.commit[:12]} {commit.title}", 4
        yield f"    by {commit.author}, {commit.date[:10]}; the one before is {culprit.good[:12]}", 6
        more = f" and {len(commit.files) - _SHOWN_FILES} more" if len(commit.files) > _SHOWN_FILES else ""
        if commit.files:
            yield f"    {', '.join(commit.files[:_SHOWN_FILES])}{more}", 6
    elif culprit.good and culprit.bad:
        yield f"  {culprit.unit}: {culprit.good} → {culprit.bad}", 4
    elif culprit_found.text:
        changed = culprit_found.text.splitlines()
        yield from ((f"    {line}", 6) for line in changed[:_SHOWN_LINES])
        if len(changed) > _SHOWN_LINES:
            yield f"    … and {len(changed) - _SHOWN_LINES} more lines: --json has all", 6
    if culprit.between:
        yield f"    or one of the {len(culprit.between)} before it, which could not be tried", 6
    if culprit_found.hint:
        yield f"  now: {culprit_found.hint}", 4


def plan(bisection: Bisection) -> dict[str, Any]:
    """The plan of a bisection for programs; times in seconds, sizes in bytes."""
    outlook = asdict(bisection.outlook) if bisection.outlook else {}
    return {"repository": bisection.repository, "numbers": list(bisection.numbers), **outlook}


def document(report: BisectReport) -> dict[str, Any]:
    """The same for programs."""
    conclusion = report.conclusion
    return {
        "target": report.bisection.target,
        "result": "waiting" if report.look else conclusion.ending if conclusion else None,
        "why": report.problem.splitlines(),
        "plan": plan(report.bisection),
        "steps": conclusion.steps if conclusion else None,
        "steps_on_axis": conclusion.steps_on_axis if conclusion else None,
        "joint": bool(conclusion and conclusion.joint),
        "culprits": [_found(each) for each in report.culprits],
        "folder": report.folder or None,
        "look": {"image": report.look.image, "address": report.look.address or None} if report.look else None,
    }


def _found(culprit_found: FoundCulprit) -> dict[str, Any]:
    culprit, commit = culprit_found.culprit, culprit_found.commit
    return {
        "axis": culprit.axis,
        "unit": culprit.unit,
        "good": culprit.good or None,
        "bad": culprit.bad or None,
        "between": list(culprit.between),
        "title": commit.title if commit else None,
        "author": commit.author if commit else None,
        "date": commit.date if commit else None,
        "files": list(commit.files) if commit else [],
        "change": culprit_found.text or None,
        "now": culprit_found.hint or None,
    }
