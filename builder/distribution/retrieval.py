"""Getting a numbered image back from the registry into this engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.distribution import registry
from builder.engine import images
from builder.events import WAITING, Message, Report
from builder.numbered import record

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.transfer import Moved
    from builder.lock.model import ImageName, Lock
    from builder.project import Project


def is_here(endpoint: Endpoint, lock: Lock, name: ImageName) -> bool:
    """Whether the engine has what images.lock records under this number."""
    details = images.inspect(endpoint, str(name))
    recorded = lock.image(name)
    return details is not None and recorded is not None and images.fingerprint(details) == recorded.fingerprint


def fetch(project: Project, endpoint: Endpoint, address: str, lock: Lock, name: ImageName, report: Report) -> Moved:
    """Gets it by its digest, or by its number where it was pushed by somebody whose images.lock this is not; returns
    what this engine lacked. It is no longer pruned then, and ``latest`` follows where it is the current number.

    Raises TransferError where it did not come, ImageStateError where something else came.
    """
    held = lock.images[name.repository]
    recorded = held.numbers[name.number]
    version = recorded.digest or str(name.number)
    place = registry.Place(address)
    report(Message(f"{name}: pulling from {place.repository(name)}"))
    moved = registry.fetch(endpoint, place, name, recorded, version, report)
    if recorded.pruned:
        record.restore(project, endpoint, name, str(name), lambda: report(WAITING))
    if held.current == name.number:
        record.point_latest(endpoint, name.repository, name.number)
    return moved
