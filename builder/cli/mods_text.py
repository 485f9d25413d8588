"""What ``builder mods check`` says of each mod."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import click

from builder import humanize
from builder.cli import folding, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.building.mod_dry_run import ModVerdict, TriedPatch
    from builder.definitions.mods.mod import Mod


def lines(verdicts: Sequence[ModVerdict], columns: int) -> Iterator[str]:
    """A block a mod, in it a line a version, and where no patch can tell whether the mod still holds, what does."""
    for mod, own in groupby(verdicts, lambda verdict: verdict.mod):
        yield click.style(mod.name, bold=True)
        requires = ", ".join(f"{name} {wanted}" for name, wanted in mod.requires.items())
        rows = [("", "requires", requires)] if requires else []
        listed = list(own)
        below = [] if mod.patches else [_proof(mod)]
        if all(verdict.state == "no patches" for verdict in listed):
            below.insert(0, said(listed[0]))
        else:
            rows += [("", verdict.target or "-", said(verdict)) for verdict in listed]
        yield from table.lines(("", "", ""), rows, columns)[1:]
        for line in below:
            yield from folding.fold(f"  {line}", columns)


def said(verdict: ModVerdict) -> str:
    """The outcome in words: what holds, and where it does not, file and hunk."""
    if verdict.missing:
        return f"not tried: {verdict.missing}"
    several = len(verdict.tried) > 1
    found = dict.fromkeys(_said(one, verdict.target, several) for one in verdict.tried)
    if verdict.excluded:
        found = dict.fromkeys([f"excluded: {verdict.excluded}", *found])
    return "; ".join(found) or _nothing_tried(verdict.mod)


def _nothing_tried(mod: Mod) -> str:
    if not mod.patches:
        return "it declares no patches, so none can stop applying"
    packages = dict.fromkeys(patch.package for patch in mod.patches)
    ways = " or ".join(f"`--against {package}=VERSION`" for package in packages)
    return f"its patches are to {' and '.join(packages)}: {ways} tries them"


def _proof(mod: Mod) -> str:
    """What tells of a mod without patches whether it does its work."""
    is_proven = "its `check:` proves it" if mod.checks else "a `check:` in its mod.yaml would prove it"
    return f"{is_proven} in each image that is built"


def _said(tried: TriedPatch, target: str, several: bool) -> str:
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
        hunks, lines_away = humanize.counted(count, "hunk"), humanize.counted(furthest, "line")
        return f"{file}applies{on} (offset): {hunks} up to {lines_away} away"
    return f"applies{on}"
