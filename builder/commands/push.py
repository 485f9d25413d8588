"""The push command: pushes numbered images to the registry, and records their digests in images.lock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.distribution import registry
from builder.lock import reading
from builder.numbered import images_lock, names

if TYPE_CHECKING:
    from builder.lock.model import ImageName, Lock
    from builder.workspace import Workspace


@dataclass(frozen=True)
class PushedImage:
    """An image in the registry, by ``reference`` and ``digest``. ``already`` is true if it was there before, ``latest``
    if that tag points to it, too."""

    image: ImageName
    reference: str
    digest: str
    already: bool
    latest: bool


def run(workspace: Workspace, texts: tuple[str, ...]) -> tuple[PushedImage, ...]:
    """Pushes the images called ``texts``, one after the other. Those that were pushed before one fails are recorded.

    Raises UsageError for an unknown image or where no registry is set, TransferError and ImageStateError as
    `registry.push` does.
    """
    lock = reading.of(workspace.project)
    requested = dict.fromkeys(names.numbered(workspace.project, lock, text)[0] for text in texts)
    target = registry.Registry(configuration.load(workspace.project).required_registry())
    return tuple(push_image(workspace, target, lock, name) for name in requested)


def push_image(workspace: Workspace, target: registry.Registry, lock: Lock, name: ImageName) -> PushedImage:
    """Pushes one image, sets ``latest`` in the registry where it is the current number, and records the digest."""
    repository = lock.images[name.repository]
    recorded = repository.numbers[name.number]
    pushed = registry.push(workspace.engine, target, name, recorded, workspace.report)
    if recorded.digest != pushed.digest:
        _record(workspace, name, pushed.digest)
    latest = repository.current == name.number and registry.set_latest(
        workspace.engine, target, name, pushed.digest, workspace.report
    )
    reference = f"{target.repository(name)}:{name.number}"
    return PushedImage(name, reference, pushed.digest, pushed.already, latest)


def _record(workspace: Workspace, name: ImageName, digest: str) -> None:
    with images_lock.transaction(workspace) as transaction:
        image = transaction.lock.image(name)
        if image is None:  # the number was removed from images.lock meanwhile
            return
        transaction.commit(transaction.lock.with_image(name, replace(image, digest=digest)))
