"""Empty blocks in images.lock, reserved for what later builds record there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import BuilderError
from builder.lock.model import Repository

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.project import Project


def added(project: Project, lock: Lock) -> Lock:
    """``lock`` with an empty block for every definition and repository that it does not have yet.

    Two branches that each add such a block would otherwise add it at the same place, which git reports as a conflict.
    """
    from builder.definitions import image

    for name in image.names(project):
        try:
            repository = image.repository_of(project, name)
        except BuilderError:  # not the definition that is being built: its errors are reported when it is
            continue
        lock = lock if name in lock.pins else lock.with_definition(name)
        lock = lock if repository in lock.images else lock.with_repository(repository, Repository())
    return lock
