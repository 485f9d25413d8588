"""What ``builder mods check`` says of each mod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click

from builder.cli import table
from builder.cli.words import counted

if TYPE_CHECKING:
    from builder.mods.trial import Tried, Verdict


def lines(verdicts: Sequence[Verdict], columns: int) -> Iterator[str]:
    """A block a mod, in it a line a version."""
    for mod, own in groupby(verdicts, lambda verdict: verdict.mod):
        yield click.style(mod.name, bold=True)
        requires = ", ".join(f"{name} {wanted}" for name, wanted in mod.requires.items())
        rows = [("", "requires", requires)] if requires else []
        listed = list(own)
        if all(verdict.state == "no patches" for verdict in listed):
            rows.append(("", "no patches to try", ""))
        else:
            rows += [("", verdict.target or "-", said(verdict)) for verdict in listed]
        yield from table.lines(("", "", ""), rows, columns)[1:]


def said(verdict: Verdict) -> str:
    """The outcome in words: what holds, and where it does not, file and hunk."""
    if verdict.missing:
        return f"not tried: {verdict.missing}"
    several = len(verdict.tried) > 1
    found = dict.fromkeys(_said(one, verdict.target, several) for one in verdict.tried)
    if verdict.excluded:
        found = dict.fromkeys([f"excluded: {verdict.excluded}", *found])
    return "; ".join(found) or "no patches to try"


def _said(tried: Tried, target: str, several: bool) -> str:
    outcome = tried.outcome
    file = f"{tried.file}: " if several else ""
    on = "" if tried.against == target else f" on {tried.against}"
    if outcome.state == "not tried":
        return f"{file}not tried: {outcome.problem}"
    if outcome.state == "fails":
        return f"{file}FAILS{on}: {outcome.problem}"
    if outcome.state == "in place":
        return f"{file}in place already{on.replace(' on ', ' in ')}"
    reduced = [str(shift) for shift in outcome.shifts if shift.context]
    if reduced:
        return f"{file}applies{on} (fuzz): {'; '.join(reduced)}"
    if outcome.shifts:
        count, furthest = len(outcome.shifts), max(abs(shift.offset) for shift in outcome.shifts)
        return f"{file}applies{on} (offset): {counted(count, 'hunk')} up to {counted(furthest, 'line')} away"
    return f"applies{on}"
