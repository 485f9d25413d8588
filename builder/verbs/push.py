"""The push verb: numbered images into the registry, their digests into images.lock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions import configuration
from builder.distribution import registry
from builder.events import WAITING, Report
from builder.lock import reading, writing
from builder.numbered import names

if TYPE_CHECKING:
    from builder.engine.endpoint import Endpoint
    from builder.lock.model import ImageName, Lock
    from builder.project import Project


@dataclass(frozen=True)
class Done:
    """One image in the registry, as ``reference`` and by ``digest``; ``latest`` where that tag was set to it too."""

    image: ImageName
    reference: str
    digest: str
    already: bool
    latest: bool


def run(project: Project, endpoint: Endpoint, texts: tuple[str, ...], report: Report) -> tuple[Done, ...]:
    """Pushes the images called so, one after the other. What was pushed before one failed is recorded.

    Raises UsageError for an unknown image or where no registry is set, TransferError and ImageStateError as
    `registry.push` does.
    """
    lock = reading.read(project.lock)
    wanted = dict.fromkeys(names.numbered(project, lock, text)[0] for text in texts)
    place = registry.Place(configuration.load(project).required_registry())
    return tuple(one(project, endpoint, place, lock, name, report) for name in wanted)


def one(
    project: Project, endpoint: Endpoint, place: registry.Place, lock: Lock, name: ImageName, report: Report
) -> Done:
    """Pushes one image, sets ``latest`` in the registry where it is the current number, and records the digest."""
    held = lock.images[name.repository]
    pushed = registry.push(endpoint, place, name, held.numbers[name.number], report)
    latest = held.current == name.number and registry.set_latest(endpoint, place, name, pushed.digest, report)
    if held.numbers[name.number].digest != pushed.digest:
        _record(project, name, pushed.digest, report)
    return Done(name, f"{place.repository(name)}:{name.number}", pushed.digest, pushed.already, latest)


def _record(project: Project, name: ImageName, digest: str, report: Report) -> None:
    with writing.writing(project.lock, on_wait=lambda: report(WAITING)) as transaction:
        held = transaction.lock.images[name.repository]
        image = held.numbers.get(name.number)
        if image is None:  # removed from the record meanwhile
            return
        numbers = {**held.numbers, name.number: replace(image, digest=digest)}
        transaction.commit(transaction.lock.with_repository(name.repository, replace(held, numbers=numbers)))
