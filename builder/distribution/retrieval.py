"""Getting a numbered image back from the registry into this engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.distribution import registry
from builder.engine import images
from builder.events import Message
from builder.numbered import images_lock

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.transfer import PulledLayers
    from builder.lock.model import ImageName, Lock
    from builder.workspace import Workspace


def is_present(endpoint: Endpoint, lock: Lock, name: ImageName) -> bool:
    """Whether the engine has what images.lock records under this number."""
    details = images.inspect(endpoint, str(name))
    recorded = lock.image(name)
    return details is not None and recorded is not None and images.fingerprint(details) == recorded.fingerprint


def pull(workspace: Workspace, address: str, lock: Lock, name: ImageName) -> PulledLayers:
    """Gets it by its digest, or by its number where it was pushed by somebody whose images.lock this is not; returns
    what this engine lacked. It is no longer pruned then, and ``latest`` follows where it is the current number.

    Raises TransferError where it did not come, ImageStateError where something else came.
    """
    held = lock.images[name.repository]
    recorded = held.numbers[name.number]
    version = recorded.digest or str(name.number)
    place = registry.Registry(address)
    workspace.report(Message(f"{name}: pulling from {place.repository(name)}"))
    moved = registry.pull(workspace.engine, place, name, recorded, version, workspace.report)
    if recorded.pruned:
        images_lock.restore(workspace, name, str(name))
    if held.current == name.number:
        images_lock.point_latest(workspace.engine, name.repository, name.number)
    return moved
