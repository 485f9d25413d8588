"""The text that ``builder mods check`` prints for each mod."""

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
    """A block for each mod with a line for each target; for a mod without patches, a line on what proves it instead."""
    for mod, own in groupby(verdicts, lambda verdict: verdict.mod):
        yield click.style(mod.name, bold=True)
        requires = ", ".join(f"{name} {specifier}" for name, specifier in mod.requires.items())
        rows = [("", "requires", requires)] if requires else []
        of_mod = list(own)
        below = [] if mod.patches else [_proof(mod)]
        if all(verdict.state == "no patches" for verdict in of_mod):
            below.insert(0, verdict_text(of_mod[0]))
        else:
            rows += [("", verdict.target or "-", verdict_text(verdict)) for verdict in of_mod]
        yield from table.lines(("", "", ""), rows, columns)[1:]
        for line in below:
            yield from folding.fold(f"  {line}", columns)


def verdict_text(verdict: ModVerdict) -> str:
    """Describes a verdict: the patches that apply, and file and hunk of those that do not."""
    if verdict.missing:
        return f"not tried: {verdict.missing}"
    several = len(verdict.tried) > 1
    texts = dict.fromkeys(_patch_text(tried, verdict.target, several) for tried in verdict.tried)
    if verdict.excluded:
        texts = dict.fromkeys([f"excluded: {verdict.excluded}", *texts])
    return "; ".join(texts) or _nothing_tried(verdict.mod)


def _nothing_tried(mod: Mod) -> str:
    if not mod.patches:
        return "it declares no patches, so none can stop applying"
    packages = dict.fromkeys(patch.package for patch in mod.patches)
    ways = " or ".join(f"`--against {package}=VERSION`" for package in packages)
    return f"its patches are to {' and '.join(packages)}: {ways} tries them"


def _proof(mod: Mod) -> str:
    """The line on what proves that a mod without patches does its work."""
    is_proven = "its `check:` proves it" if mod.checks else "a `check:` in its mod.yaml would prove it"
    return f"{is_proven} in each image that is built"


def _patch_text(tried: TriedPatch, target: str, several: bool) -> str:
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
