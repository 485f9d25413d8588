"""The ``checkpoints list`` and ``show`` commands: what is defined, what was made, and what is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.checkpoints import checkpoints_lock, result_place
from builder.definitions import checkpoint
from builder.errors import BuilderError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.checkpoints.record import CheckpointRevision
    from builder.definitions.checkpoint import CheckpointDefinition
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ListedRevision:
    """A revision that was made; ``folder`` is where it is on this machine, None where it is not."""

    revision: str
    record: CheckpointRevision
    folder: Path | None


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint that is defined or was made, with its revisions, the latest first. ``problem`` says what is wrong
    with the definition."""

    name: str
    definition: CheckpointDefinition | None
    revisions: tuple[ListedRevision, ...]
    problem: str = ""

    @property
    def size_here(self) -> int:
        """The bytes of the revisions on this machine; what they share is counted for each."""
        return sum(each.record.size for each in self.revisions if each.folder)


def run(workspace: Workspace) -> tuple[ListedCheckpoint, ...]:
    """All checkpoints, by name. Raises LockError for a damaged checkpoints.lock."""
    records = checkpoints_lock.read(workspace.project)
    names = sorted({*checkpoint.names(workspace.project), *records.checkpoints})
    return tuple(_listed(workspace, name) for name in names)


def _listed(workspace: Workspace, name: str) -> ListedCheckpoint:
    definition, problem = None, ""
    if name in checkpoint.names(workspace.project):
        try:
            definition = checkpoint.load(workspace.project, name)
        except BuilderError as error:
            problem = error.message
    revisions = []
    made = checkpoints_lock.read(workspace.project).checkpoints.get(name, {})
    for revision, record in sorted(made.items(), key=lambda item: -item[1].sequence):
        place = result_place.of(workspace.project, workspace.environment, name, record.folder)
        folder = place.folder(revision) if place.has(revision) else None
        revisions.append(ListedRevision(revision, record, folder))
    return ListedCheckpoint(name, definition, tuple(revisions), problem)
