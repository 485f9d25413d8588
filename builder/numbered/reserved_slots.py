"""Places in images.lock for what is not built yet, so that branches which build different things merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions import image
from builder.errors import BuilderError
from builder.lock.model import Lock, Repository

if TYPE_CHECKING:
    from builder.project import Project


def reserve(project: Project, lock: Lock) -> Lock:
    """``lock`` with an empty block for every definition and its repository that it says nothing of yet.

    Two branches that each add the first block of something would add it in one place, which git takes for a conflict.
    """
    for name in image.names(project):
        try:
            repository = image.repository_of(project, name)
        except BuilderError:  # it is not the definition that is being built: its mistakes are told when it is
            continue
        lock = lock if name in lock.pins else lock.with_definition(name)
        lock = lock if repository in lock.images else lock.with_repository(repository, Repository())
    return lock
