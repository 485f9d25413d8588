"""The push command: pushes numbered images to the registry, and records their digests in images.lock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.distribution import registry
from builder.errors import TransferError
from builder.events import Message
from builder.evidence import traveling
from builder.lock import reading
from builder.numbered import images_lock, names

if TYPE_CHECKING:
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.workspace import Workspace


@dataclass(frozen=True)
class PushedImage:
    """An image in the registry, by ``reference`` and ``digest``. ``already`` is true if it was there before, ``latest``
    if that tag points to it, too; ``evidence`` is the number of runs that were put beside it now."""

    image: ImageName
    reference: str
    digest: str
    already: bool
    latest: bool
    evidence: int = 0


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
    evidence = _attach_evidence(workspace, target, name, recorded, pushed.digest)
    reference = f"{target.repository(name)}:{name.number}"
    return PushedImage(name, reference, pushed.digest, pushed.already, latest, evidence)


def _attach_evidence(
    workspace: Workspace, target: registry.Registry, name: ImageName, recorded: NumberedImage, digest: str
) -> int:
    """Puts the project's own runs of an image beside it; returns how many, 0 where they are there. A registry that does
    not take them has the image all the same: the user is told."""
    runs, problems = traveling.of_image(workspace.project, name, recorded.fingerprint)
    for problem in problems:
        workspace.report(Message(f"{problem}: it stays behind"))
    own = [run for run in runs if not run.foreign]
    if not own:
        return 0
    from builder.distribution import attested_evidence

    try:
        was_new = attested_evidence.push(workspace.engine, target.repository(name), digest, own)
    except TransferError as error:
        workspace.report(Message(f"{name}: its evidence was not pushed: {error.message}"))
        return 0
    return len(own) if was_new else 0


def _record(workspace: Workspace, name: ImageName, digest: str) -> None:
    with images_lock.transaction(workspace) as transaction:
        image = transaction.lock.image(name)
        if image is None:  # the number was removed from images.lock meanwhile
            return
        transaction.commit(transaction.lock.with_image(name, replace(image, digest=digest)))
