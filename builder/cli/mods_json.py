"""The results of ``builder mods`` as JSON."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.building.mod_dry_run import ModVerdict, TriedPatch
    from builder.commands.mods_list import ListedMod
    from builder.copies.origin import Origin
    from builder.definitions.mods.mod import FileCopy, Mod, ModPatch
    from builder.definitions.mods.script_facts import ScriptFacts


def list_json(mods: Sequence[ListedMod]) -> dict[str, Any]:
    """The list of mods. A mod that cannot be read has no ``changes``, and its ``problem`` says why."""
    return {"mods": [_listed(listed) for listed in mods]}


def check_json(verdicts: Sequence[ModVerdict]) -> dict[str, Any]:
    """The check of mods: the targets that each was tried on, and the outcome of each of its patches there."""
    return {
        "mods": [_checked(mod, list(own)) for mod, own in groupby(verdicts, lambda verdict: verdict.mod)],
    }


def _listed(listed: ListedMod) -> dict[str, Any]:
    mod = listed.mod
    return {
        "mod": listed.name,
        "problem": listed.problem,
        "description": mod.description if mod else "",
        "changes": {
            "packages": list(mod.packages),
            "files": [_copy(copy) for copy in mod.copies],
            "patches": [_patch(patch) for patch in mod.patches],
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
        "definitions": list(listed.definitions),
        "recipes": list(listed.recipes),
        "images": list(listed.images),
        "source": _origin(listed.origin) if listed.origin else None,
        "edited": list(listed.edited),
    }


def _patch(patch: ModPatch) -> dict[str, str | int]:
    version = {"version": patch.version} if patch.version else {}
    return {"file": patch.file, "package": patch.package, "strip": patch.strip, **version}


def _copy(copy: FileCopy) -> dict[str, str]:
    return {"from": copy.source, "to": copy.to, **({"sha256": copy.sha256} if copy.sha256 else {})}


def _origin(origin: Origin) -> dict[str, str]:
    return {
        "url": origin.url,
        "path": origin.path,
        "ref": origin.ref,
        "commit": origin.commit,
        "content": origin.content,
    }


def _checked(mod: Mod, verdicts: Sequence[ModVerdict]) -> dict[str, Any]:
    return {
        "mod": mod.name,
        "requires": mod.requires,
        "checks": [_verdict(verdict) for verdict in verdicts],
        "script": _script(verdicts[0].script),
    }


def _script(facts: ScriptFacts | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {
        "file": facts.name,
        "applies_patches": facts.applies_patches,
        "patches": list(facts.patches),
        "downloads": list(facts.downloads),
        "run_time": [{"does": use.does, "instead": use.instead} for use in facts.run_time],
    }


def _verdict(verdict: ModVerdict) -> dict[str, Any]:
    return {
        "target": verdict.target,
        "state": verdict.state,
        "holds": verdict.holds,
        "hint": verdict.is_hint,
        "excluded_by": verdict.excluded,
        "missing": verdict.missing,
        "patches": [_tried(tried) for tried in verdict.tried],
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
