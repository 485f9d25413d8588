"""The tag ``latest`` of a repository, which follows its current number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.engine import images
from builder.events import Fact, Message
from builder.lock.model import ImageName
from builder.numbered import claims, identity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.engine.client.endpoint import Endpoint
    from builder.numbered.identity import ProjectIdentity
    from builder.numbered.pointers import PointerMove
    from builder.workspace import Workspace


def point(workspace: Workspace, repository: str, current: int | None) -> None:
    """Points ``REPOSITORY:latest`` to the current number. Where the engine lacks that image the tag stays as it is, and
    so it does where it is another project's, which is reported."""
    engine = workspace.engine
    if current is None or images.inspect(engine, f"{repository}:{current}") is None:
        return
    if foreign := claims.take_latest(engine, identity.of(workspace.project), repository):
        workspace.report(Fact(_foreign_latest(repository, foreign)))
        return
    if kept := move(engine, ImageName(repository, current)):
        gets = f"`builder adopt {kept}` gives it one"
        workspace.report(Message(f"{repository}:latest was an image without a number, which is {kept} now; {gets}"))


def foreign(workspace: Workspace, moves: Iterable[PointerMove]) -> tuple[str, ...]:
    """The repositories of ``moves`` whose ``latest`` another project has: that tag stays."""
    own = identity.existing(workspace.project)
    repositories = [move.what for move in moves if not move.is_model]
    return tuple(each for each in repositories if claims.owner_of_latest(workspace.engine, own, each))


def move(endpoint: Endpoint, name: ImageName) -> str:
    """Points the ``latest`` of an engine to a number that it has. An image whose only name that was gets another one,
    or the next clean-up would take it: it was there before this project, or was pulled beside it. Returns that name;
    empty where there is no such image."""
    latest, kept = f"{name.repository}:latest", ""
    details, before = images.inspect(endpoint, str(name)), images.inspect(endpoint, latest)
    if details and before and before.id != details.id and before.tags == (latest,):
        kept = f"{name.repository}:before-{before.id.removeprefix('sha256:')[:12]}"
        images.tag(endpoint, before.id, kept)
    images.tag(endpoint, str(name), latest)
    return kept


def _foreign_latest(repository: str, owner: ProjectIdentity) -> str:
    frees = f"`docker volume rm {claims.volume_of_latest(repository)}` lets the project that moves it next have it"
    return f"{repository}:latest stays as it is: {owner} has it; {frees}"
