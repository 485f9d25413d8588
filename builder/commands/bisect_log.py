"""The journal of the bisection: what was tried, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.bisecting import journal
from builder.errors import NothingToDoError

if TYPE_CHECKING:
    from builder.project import Project


def run(project: Project) -> str:
    """The text of the journal. Raises NothingToDoError where there is none."""
    bisection = journal.read(project)
    if bisection is None:
        raise NothingToDoError("no bisection is under way", hint="`builder bisect MODEL` begins one")
    return f"{journal.text_of(bisection)}\n"
