"""Checkpoints as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builder.commands.checkpoints_list import ListedCheckpoint
    from builder.commands.checkpoints_plan import CheckpointOutlook


def of_outlook(outlook: CheckpointOutlook) -> dict[str, Any]:
    """The outlook of a build: what it would do, and what that takes."""
    planned = outlook.plan
    return {
        "checkpoint": planned.definition.name,
        "model": planned.definition.model,
        "inputs": planned.inputs,
        "sources": {
            name: {"asked": source.requested, "commit": source.snapshot.commit if source.snapshot else None}
            for name, source in planned.sources.items()
        },
        "steps": [{"does": effect.text, "tensors": effect.tensors} for effect in planned.content.effects],
        "files": [
            {"name": shard.name, "size": shard.size, "tensors": len(shard.names), "copied": shard.copied}
            for shard in planned.shards
        ],
        "tensors": len(planned.content.tensors),
        "fetch": planned.fetched,
        "read": planned.read,
        "write": planned.size,
        "folder": outlook.folder,
        "free": outlook.free,
        "needed": outlook.needed,
        "seconds": round(outlook.seconds, 1),
        "made": outlook.made,
    }


def of_listed(listed: ListedCheckpoint) -> dict[str, Any]:
    """A checkpoint that is defined or was made."""
    return {
        "checkpoint": listed.name,
        "description": listed.definition.description if listed.definition else None,
        "model": listed.definition.model if listed.definition else None,
        "problem": listed.problem or None,
        "revisions": [
            {
                "revision": each.revision,
                "folder": str(each.folder) if each.folder else None,
                "size": each.record.size,
                "tensors": each.record.tensors,
                "mods": list(each.record.mods),
                "sources": {
                    name: {"asked": source.requested, "commit": source.commit}
                    for name, source in each.record.sources.items()
                },
            }
            for each in listed.revisions
        ],
    }
