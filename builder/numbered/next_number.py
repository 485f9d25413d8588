"""The next number of a repository: above every one that was ever given to its images, here and in the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.engine import images
from builder.lock.model import ImageName, Repository
from builder.numbered import claims, identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builder.lock.model import Lock
    from builder.project import Project
    from builder.workspace import Workspace


def give(
    workspace: Workspace,
    lock: Lock,
    repository: str,
    fingerprint: str,
    announce: Callable[[ImageName], None] = lambda _: None,
) -> ImageName:
    """The next number of a repository in ``lock``, in the engine and in ``builds/``, claimed for the content of this
    fingerprint; ``announce`` is called with each that is tried."""
    engine, own = workspace.engine, identity.of(workspace.project)
    first = free(workspace.project, lock, repository, images.tags(engine, [repository]))
    name = ImageName(repository, max(first, claims.next_number(engine, repository)))
    while True:
        announce(name)
        if claims.give_number(engine, own, name, fingerprint):
            return name
        name = ImageName(repository, name.number + 1)


def reason(workspace: Workspace, name: ImageName) -> str:
    """The reason why ``name`` has not the number before it, of which images.lock knows nothing."""
    before = ImageName(name.repository, name.number - 1)
    project = workspace.project
    for folder in (project.builds, project.evidence):
        if (path := folder / before.repository / str(before.number)).is_dir():
            return f"{project.relative(path)} is there, so {before.number} was given before"
    if images.inspect(workspace.engine, str(before)):
        return f"the engine has {before}, which images.lock does not"
    return f"{before} was given before on this engine, by another project or an earlier images.lock"


def free(project: Project, lock: Lock, repository: str, tags: Iterable[str]) -> int:
    """The next number, above every one in the lock, in the engine, in ``builds/`` and in ``evidence/``: none is used
    twice, not even after images.lock was lost or replaced."""
    taken = [tag.removeprefix(f"{repository}:") for tag in tags if tag.startswith(f"{repository}:")]
    for folder in (project.builds / repository, project.evidence / repository):
        taken += [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max(
        [lock.images.get(repository, Repository()).next, *(int(number) + 1 for number in taken if number.isdecimal())]
    )
