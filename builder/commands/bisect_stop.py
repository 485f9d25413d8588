"""The end of a bisection before it has come to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.bisecting import journal
from builder.commands.bisect_parts import making, serving
from builder.errors import NothingToDoError

if TYPE_CHECKING:
    from builder.workspace import Workspace


def run(workspace: Workspace) -> int:
    """Serves the model as before, removes the candidates and the journal; returns how many candidates there were.
    Raises NothingToDoError where no bisection is under way."""
    project = workspace.project
    with journal.locked(project):
        bisection = journal.read(project)
        if bisection is None:
            raise NothingToDoError("no bisection is under way")
        serving.serve_as_before(workspace, bisection)
        count = making.remove_all(workspace)
        journal.remove(project)
        return count
