"""The ``checkpoints show`` command: everything about one checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.commands import checkpoints_list
from builder.definitions import checkpoint
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.commands.checkpoints_list import ListedCheckpoint
    from builder.workspace import Workspace


def run(workspace: Workspace, name: str) -> ListedCheckpoint:
    """The checkpoint called ``name``. Raises UsageError where it is neither defined nor recorded."""
    for listed in checkpoints_list.run(workspace):
        if listed.name == name:
            return listed
    checkpoint.load(workspace.project, name)
    raise UsageError(f"no checkpoint is called `{name}`")
