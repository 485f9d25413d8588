"""The text that ``builder mods check`` prints for each mod."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from builder import humanize
from builder.cli import folding, table
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.building.mod_dry_run import ModVerdict, TriedPatch


def lines(verdicts: Sequence[ModVerdict], columns: int) -> Iterator[str]:
    """A block for each mod with a line for each target; for a mod without patches, what is known of it instead."""
    for mod, own in groupby(verdicts, lambda verdict: verdict.mod):
        yield styled(mod.name, bold=True)
        requires = ", ".join(f"{name} {specifier}" for name, specifier in mod.requires.items())
        rows = [("", "requires", requires)] if requires else []
        of_mod = list(own)
        below = [] if mod.patches else list(_below(of_mod))
        if all(verdict.state == "no patches" for verdict in of_mod):
            below.insert(0, verdict_text(of_mod[0]))
        else:
            rows += [row for verdict in of_mod for row in _rows(verdict)]
        yield from table.lines(("", "", ""), rows, columns)[1:]
        for line in below:
            yield from folding.fold(f"  {line}", columns, hanging=0)


def verdict_text(verdict: ModVerdict) -> str:
    """Describes a verdict: the patches that apply, and file and hunk of those that do not."""
    if verdict.missing:
        return f"not tried: {verdict.missing}"
    several = len(verdict.tried) > 1
    texts = dict.fromkeys(_patch_text(tried, verdict.target, several) for tried in verdict.tried)
    if verdict.excluded:
        texts = dict.fromkeys([f"excluded: {verdict.excluded}", *texts])
    return "; ".join(texts) or _nothing_tried(verdict)


def _rows(verdict: ModVerdict) -> Iterator[tuple[str, str, str]]:
    """The line of a verdict; for patches that a script applies, a line for each, as it may well leave some out."""
    texts = [verdict_text(verdict)]
    if verdict.is_hint and verdict.tried and not verdict.excluded:
        several = len(verdict.tried) > 1
        texts = [f"hint: {_hint_text(tried, verdict.target, several)}" for tried in verdict.tried]
    for number, text in enumerate(texts):
        yield ("", "" if number else verdict.target or "-", text)


def _hint_text(tried: TriedPatch, target: str, several: bool) -> str:
    if tried.outcome.state != "fails":
        text = _patch_text(tried, target, several)
        return text if not several or text.startswith(tried.file) else f"{tried.file}: {text}"
    first, *others = tried.outcome.problem.split("; ")
    more = f", and {humanize.counted(len(others), 'place')} more" if others else ""
    file = f"{tried.file} " if several else ""
    return f"{file}does not apply to {tried.against}: {first}{more}"


def _nothing_tried(verdict: ModVerdict) -> str:
    mod, script = verdict.mod, verdict.script
    if mod.patches:
        packages = dict.fromkeys(patch.package for patch in mod.patches)
        ways = " or ".join(f"`--against {package}=VERSION`" for package in packages)
        return f"its patches are to {' and '.join(packages)}: {ways} tries them"
    if script is None:
        return "no patches to check"
    if script.instead:
        return "it cannot be baked"
    if script.only_copies:
        return f"no patches to check; {script.name} only copies files"
    if script.patches:
        files = ", ".join(script.patches)
        return f"{script.name} applies {files} itself, and nothing here tells to what: not tried"
    if script.applies_patches:
        return f"{script.name} applies patches that do not lie beside it: nothing tells whether they fit"
    return f"no patches to check; {script.name} is tried only in a build"


def _below(verdicts: Sequence[ModVerdict]) -> Iterator[str]:
    """The lines on what is known of a mod that declares no patches, and on what would prove it."""
    mod, script = verdicts[0].mod, verdicts[0].script
    if script and script.instead:
        yield script.instead
        if script.changes_nothing and not mod.described:
            yield "a recipe that names it is built without it"
        return
    if script and any(verdict.is_hint and verdict.tried for verdict in verdicts):
        yield f"a hint only: {script.name} applies them itself, perhaps elsewhere, perhaps not all"
    if script and script.unnamed:
        yield f"{script.name} does not name {', '.join(script.unnamed)}"
    if script and script.downloads and mod.network:
        way = "; `files:` of a mod.yaml would" if {"curl", "wget"} & set(script.downloads) else ""
        yield f"it downloads with {' and '.join(script.downloads)}: nothing pins what comes{way}"
    is_proven = "its `check:` proves it" if mod.checks else "a `check:` in its mod.yaml would prove it"
    yield f"{is_proven} in each image that is built"


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
