"""``builder mods`` for programs."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.building.mod_dry_run import ModVerdict, TriedPatch
    from builder.commands.mods_list import ListedMod


def listed(found: Sequence[ListedMod]) -> dict[str, Any]:
    """The list of mods. What cannot be read has no ``changes`` and says why as its ``problem``."""
    return {"mods": [_listed(one) for one in found]}


def checked(verdicts: Sequence[ModVerdict]) -> dict[str, Any]:
    """The check of mods: what each was tried on, and what became of each of its patches there."""
    return {
        "mods": [
            {"mod": mod.name, "requires": mod.requires, "checks": [_verdict(one) for one in own]}
            for mod, own in groupby(verdicts, lambda verdict: verdict.mod)
        ],
    }


def _listed(one: ListedMod) -> dict[str, Any]:
    mod = one.mod
    return {
        "mod": one.name,
        "problem": one.problem,
        "description": mod.description if mod else "",
        "changes": {
            "packages": list(mod.packages),
            "files": [{"from": copy.source, "to": copy.to} for copy in mod.copies],
            "patches": [{"file": p.file, "package": p.package, "strip": p.strip} for p in mod.patches],
            "run": mod.run,
            "network": mod.network,
            "env": mod.env,
        }
        if mod
        else None,
        "requires": mod.requires if mod else {},
        "conflicts": list(mod.conflicts) if mod else [],
        "after": list(mod.after) if mod else [],
        "content_hash": mod.content_hash if mod else None,
        "definitions": list(one.definitions),
        "recipes": list(one.recipes),
        "images": list(one.images),
    }


def _verdict(one: ModVerdict) -> dict[str, Any]:
    return {
        "target": one.target,
        "state": one.state,
        "holds": one.holds,
        "excluded_by": one.excluded,
        "missing": one.missing,
        "patches": [_tried(tried) for tried in one.tried],
    }


def _tried(tried: TriedPatch) -> dict[str, Any]:
    return {
        "file": tried.file,
        "package": tried.package,
        "against": tried.against,
        "state": tried.outcome.state,
        "problem": tried.outcome.problem,
        "shifts": [
            {
                "file": shift.file,
                "hunk": shift.hunk or None,
                "hunks": shift.hunks,
                "line": shift.line,
                "offset": shift.offset if shift.context is None else None,
                "context": list(shift.context) if shift.context else None,
            }
            for shift in tried.outcome.shifts
        ],
    }
