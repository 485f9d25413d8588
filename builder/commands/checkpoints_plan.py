"""The ``checkpoints plan`` command: tells what a build would do, from the headers of the sources alone."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.checkpoints import build_speed, checkpoint_plan, checkpoints_lock, conversion, result_place
from builder.definitions import checkpoint
from builder.errors import UsageError
from builder.events import Message

if TYPE_CHECKING:
    from builder.checkpoints.checkpoint_plan import CheckpointPlan
    from builder.workspace import Workspace


@dataclass(frozen=True)
class CheckpointOutlook:
    """The outlook of a build: its plan, the ``folder`` that the result gets, the bytes that are ``free`` and that are
    ``needed`` there, the ``seconds`` that it takes without fetching, and ``made``, the revision if it is there
    already."""

    plan: CheckpointPlan
    folder: str
    free: int
    needed: int
    seconds: float
    made: str | None


def run(workspace: Workspace, name: str, *, update: bool = False) -> CheckpointOutlook:
    """Plans the checkpoint called ``name``; with ``update`` the revisions of its sources are looked up anew. Changes
    nothing. Raises what `checkpoint.load` and `checkpoint_plan.make` do."""
    definition = checkpoint.load(workspace.project, name)
    records = checkpoints_lock.read(workspace.project)
    plan = checkpoint_plan.make(
        workspace.project, workspace.environment, definition, records, workspace.report, update=update
    )
    try:
        conversion.require_packages(plan.content.tensors.values())
    except UsageError as error:  # the plan holds all the same
        workspace.report(Message(f"{error.message}; {error.hint}"))
    place = result_place.of(workspace.project, workspace.environment, definition.name, definition.folder)
    revisions = records.checkpoints.get(definition.name, {})
    made = next((each for each, made in revisions.items() if made.inputs == plan.inputs and place.has(each)), None)
    disk = next(folder for folder in (place.root, *place.root.parents) if folder.exists())
    needed = 0 if made else plan.size + plan.fetched
    seconds = 0.0 if made else plan.size / build_speed.expected(workspace.project)
    return CheckpointOutlook(plan, str(place.root), shutil.disk_usage(disk).free, needed, seconds, made)
