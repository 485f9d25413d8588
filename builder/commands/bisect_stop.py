"""The end of a bisection before it has come to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.bisecting import journal
from builder.commands.bisect_parts import beginning, making, serving
from builder.errors import ConflictError, FileProblemsError, NothingToDoError, UnsafePathError, UsageError
from builder.events import Message

if TYPE_CHECKING:
    from builder.workspace import Workspace


def run(workspace: Workspace) -> int:
    """Serves the model as before, removes the candidates and the journal; returns how many candidates there were. A
    server that is no longer known by the name of the bisection is left, and reported.
    Raises NothingToDoError where no bisection is under way."""
    project = workspace.project
    with journal.locked(project):
        bisection = journal.read(project)
        if bisection is None:
            raise NothingToDoError("no bisection is under way")
        try:
            serving.serve_as_before(workspace, beginning.again(workspace, bisection))
        except (ConflictError, FileProblemsError, UnsafePathError, UsageError) as error:
            workspace.report(Message(f"the server of {bisection.target} was left as it is: {error.message}"))
        count = making.remove_all(workspace)
        journal.remove(project)
        return count
