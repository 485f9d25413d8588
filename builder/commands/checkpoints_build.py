"""The ``checkpoints build`` command: makes the weights of a definition, and records what came of it."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import humanize
from builder.checkpoints import (
    build_speed,
    checkpoint_plan,
    checkpoints_lock,
    conversion,
    making,
    result_place,
    source_fetching,
)
from builder.checkpoints.record import CheckpointName
from builder.definitions import checkpoint
from builder.errors import SourceError
from builder.events import Message

if TYPE_CHECKING:
    from pathlib import Path

    from builder.checkpoints.checkpoint_plan import CheckpointPlan
    from builder.checkpoints.result_place import ResultPlace
    from builder.workspace import Workspace

# Left free: other programs write to this disk meanwhile.
_SPARE = 1_000_000_000


@dataclass(frozen=True)
class BuiltCheckpoint:
    """A checkpoint that was made, or was there already (``seconds`` is None then). ``size`` is in bytes."""

    name: CheckpointName
    folder: Path
    size: int
    tensors: int
    seconds: float | None


def run(workspace: Workspace, name: str, *, update: bool = False) -> BuiltCheckpoint:
    """Makes the checkpoint called ``name``, unless it is there with the same inputs; with ``update`` the revisions of
    its sources are looked up anew. What an earlier run finished is not made again.

    Raises what `checkpoint_plan.make` and `making.make` do, UsageError where a package for its steps is not installed,
    and SourceError where the disk has too little room.
    """
    project, environ = workspace.project, workspace.environment
    definition = checkpoint.load(project, name)
    records = checkpoints_lock.read(project)
    plan = checkpoint_plan.make(project, environ, definition, records, workspace.report, update=update)
    place = result_place.of(project, environ, definition.name, definition.folder)
    recorded = records.checkpoints.get(definition.name, {})
    for revision, made in recorded.items():
        if made.inputs == plan.inputs and place.has(revision):
            with checkpoints_lock.transaction(project) as transaction:
                transaction.add(definition.name, revision, made)
            making.forget_this(plan, place)
            return BuiltCheckpoint(
                CheckpointName(definition.name, revision), place.folder(revision), made.size, made.tensors, None
            )
    conversion.require_packages(plan.content.tensors.values())
    finished = making.finished(plan, place)
    _require_room(plan, place, finished)
    source_fetching.fetch(plan, workspace.report)
    began = time.monotonic()
    workspace.report(Message(f"making {definition.name}: {humanize.size(plan.size)} in {len(plan.shards)} files"))
    revision, made = making.make(plan, place, recorded, workspace.report)
    seconds = time.monotonic() - began
    # Before the record: with that the next build has nothing to do, and what a kill leaves here would stay.
    build_speed.record(project, made.size - finished, seconds)
    with checkpoints_lock.transaction(project) as transaction:
        transaction.add(definition.name, revision, made)
    making.forget(place)
    return BuiltCheckpoint(
        CheckpointName(definition.name, revision), place.folder(revision), made.size, made.tensors, seconds
    )


def _require_room(plan: CheckpointPlan, place: ResultPlace, finished: int) -> None:
    disk = next(folder for folder in (place.root, *place.root.parents) if folder.exists())
    free = shutil.disk_usage(disk).free
    needed = plan.size + plan.fetched - finished
    if needed + _SPARE > free:
        raise SourceError(
            f"{plan.definition.name} takes {humanize.size(needed)}, and {disk} has {humanize.size(free)} free",
            hint="make room, or name a folder on a larger disk: `output: {folder: PATH}`, or HF_HOME for all models",
        )
